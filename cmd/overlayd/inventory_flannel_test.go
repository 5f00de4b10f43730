//go:build flannel

package main

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestFlanneldInventorySees: whatever is changed by hand on a flanneld's host or in the store, the check against the
// plain model names it; and when that is undone, it says nothing.
func TestFlanneldInventorySees(t *testing.T) {
	w := &world{filter: filterIPT, masq: true, networks: []plainNetwork{{vni: 1, is: []string{"10.5.0.0/16"}}}}
	s := newSwaps(t, 2, rand.New(rand.NewPCG(1, 0)), w)
	h, peer := s.on[0], s.on[1]
	s.start(h, modeFlanneld)
	s.start(peer, modeKernel)
	s.check("before")
	subnet := peer.plain.overlays[0].subnets[0]
	base, _, _ := strings.Cut(subnet, "/")
	mac, wrong := peer.plain.overlays[0].macs[0], "02:00:00:00:00:99"
	file, key := filepath.Join(h.dir, "subnet.env.old"), "/coreos.com/network/overlayd/nodes/192.0.2.99"
	run := func(command string) func() {
		return func() { h.Run("sh", "-c", command) }
	}
	for _, c := range []struct {
		name     string
		do, undo func()
		want     []string
	}{
		{"a route more", run("ip route add 10.77.0.0/24 via 192.0.2.1 proto 211"), run("ip route del 10.77.0.0/24"),
			[]string{"has   route 10.77.0.0/24 via 192.0.2.1 dev eth0 proto 211"}},
		{"a route less", run("ip route del " + subnet), run("ip route add " + subnet + " via " + base + " dev flannel.1 onlink"),
			[]string{"lacks route " + subnet + " via " + base + " dev flannel.1 proto boot onlink"}},
		{"a stale rule", run("iptables -t nat -N OVERLAYD-1-POSTRTG; iptables -t nat -A OVERLAYD-1-POSTRTG -s 10.5.0.0/16 -j MASQUERADE"),
			run("iptables -t nat -F OVERLAYD-1-POSTRTG; iptables -t nat -X OVERLAYD-1-POSTRTG"),
			[]string{"has   iptables-nft ip nat OVERLAYD-1-POSTRTG", "has   iptables-nft ip nat OVERLAYD-1-POSTRTG 1: -s 10.5.0.0/16 -j MASQUERADE"}},
		{"a stale table", run("nft add table ip6 overlayd-1; nft add chain ip6 overlayd-1 postrouting"), run("nft delete table ip6 overlayd-1"),
			[]string{"has   nft ip6 overlayd-1", "has   nft ip6 overlayd-1 postrouting"}},
		{"a file", func() { os.WriteFile(file, []byte("x\n"), 0o600) }, func() { os.Remove(file) }, []string{"has   file subnet.env.old 0600: x"}},
		{"a key", func() { s.put(key, "{}") }, func() { s.delete(key) }, []string{"has   key " + key + " = {}"}},
		{"a wrong neighbour", run("ip neigh replace " + base + " lladdr " + wrong + " dev flannel.1 nud permanent"),
			run("ip neigh replace " + base + " lladdr " + mac + " dev flannel.1 nud permanent"),
			[]string{"has   neighbour flannel.1 " + base + " mac " + wrong, "lacks neighbour flannel.1 " + base + " mac " + mac}},
		{"an FDB entry", run("bridge fdb add " + wrong + " dev flannel.1 dst 192.0.2.99"), run("bridge fdb del " + wrong + " dev flannel.1 dst 192.0.2.99"),
			[]string{"has   fdb flannel.1 " + wrong + " dst 192.0.2.99"}},
		{"a nexthop object", run("ip nexthop add id 7 via 192.0.2.1 dev eth0 proto 211"), run("ip nexthop del id 7"),
			[]string{"has   nexthop via 192.0.2.1 dev eth0 proto 211"}},
		{"an address", run("ip addr add 10.5.0.9/32 dev flannel.1"), run("ip addr del 10.5.0.9/32 dev flannel.1"), []string{"has   address flannel.1 10.5.0.9/32"}},
		{"a device", run("ip link add ovl.1 type vxlan id 9 dstport 8472"), run("ip link del ovl.1"), []string{"has   link ovl.1 vxlan id 9 "}},
		{"an alias", run("ip link set flannel.1 alias overlayd"), run("ip link set flannel.1 alias ''"), []string{"has   link flannel.1 vxlan", "lacks link flannel.1 vxlan"}},
		{"a routing rule", run("ip rule add pref 100 fwmark 7 table 100"), run("ip rule del pref 100"), []string{"has   rule inet 100 all table 100"}},
	} {
		c.do()
		seen := append(s.differsOn(h), s.differsInStore()...)
		named := func(want string) bool {
			return slices.ContainsFunc(seen, func(line string) bool { return strings.HasPrefix(line, want) })
		}
		for _, want := range c.want {
			if !named(want) {
				t.Errorf("%s: not named: %s", c.name, want)
			}
		}
		if len(seen) != len(c.want) {
			t.Errorf("%s: named are\n\t%s", c.name, strings.Join(seen, "\n\t"))
		}
		c.undo()
		if seen := append(s.differsOn(h), s.differsInStore()...); len(seen) > 0 {
			t.Fatalf("%s, undone: named are\n\t%s", c.name, strings.Join(seen, "\n\t"))
		}
	}
}
