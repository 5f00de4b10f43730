package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// plainPair is a world of two hosts with a network each of which has a subnet.
func plainPair(change func(*world)) *world {
	w := &world{filter: filterNFT, networks: []plainNetwork{{vni: 1, is: []string{"10.5.0.0/16", "fd00:5::/48"}}}}
	if change(w); !w.dual {
		w.networks[0].is = w.networks[0].is[:1]
	}
	for i, name := range []string{"a", "b"} {
		subnets := [][]string{{"10.5.1.0/24", "fd00:5:0:1::/64"}, {"10.5.2.0/24", "fd00:5:0:2::/64"}}[i][:w.families()]
		w.hosts = append(w.hosts, &plainHost{name: name, slot: 2 + i, tables: make([]bool, 2), overlays: []*plainOverlay{{subnets: subnets}}})
	}
	return w
}

// macOf2 and macOf3 are what an overlayd publishes with VNI 1 at 192.0.2.2 and .3.
const macOf2, macOf3 = "ca:95:8e:19:06:43", "ba:44:ca:89:42:85"

// TestPlainWorld: what the model wants of the first host after some events, beyond what every host has.
func TestPlainWorld(t *testing.T) {
	const drawn = "02:00:00:00:00:07"
	for _, c := range []struct {
		name   string
		world  func(*world)
		events func(*world)
		want   string
	}{
		{"nothing runs", func(*world) {}, func(*world) {}, ``},
		{"overlayd, kernel", func(*world) {}, func(w *world) { w.starts(1, modeKernel); w.starts(0, modeKernel) }, `
			address flannel.1 10.5.1.0/32
			claim 1
			fdb flannel.1 ` + macOf3 + ` dst 192.0.2.3
			file subnet.env 0644: FLANNEL_NETWORK=10.5.0.0/16 FLANNEL_SUBNET=10.5.1.1/24 FLANNEL_MTU=1450 FLANNEL_IPMASQ=false
			file subnet.env.node 0600: id, vni 1, network 10.5.0.0/16, public 192.0.2.2, wrote subnet.env
			link flannel.1 vxlan id 1 local 192.0.2.2 dev eth0 port 8472 mtu 1450 mac ` + macOf2 + ` alias overlayd up
			neighbour flannel.1 10.5.2.0 mac ` + macOf3 + `
			nexthop via 10.5.2.0 dev flannel.1 proto 211 onlink
			nft inet overlayd-guard-1
			route 10.5.2.0/24 via 10.5.2.0 dev flannel.1 proto 211 onlink
			route unreachable 10.5.0.0/16 dev  proto 211 metric 4294967294`},
		{"overlayd, userspace, direct", func(w *world) { w.direct = true }, func(w *world) { w.starts(1, modeKernel); w.starts(0, modeUserspace) }, `
			address flannel.1 10.5.1.0/32
			claim 1
			file subnet.env 0644: FLANNEL_NETWORK=10.5.0.0/16 FLANNEL_SUBNET=10.5.1.1/24 FLANNEL_MTU=1450 FLANNEL_IPMASQ=false
			file subnet.env.node 0600: id, vni 1, network 10.5.0.0/16, public 192.0.2.2, wrote subnet.env
			link flannel.1 tun mtu 1450 alias overlayd up
			nft inet overlayd-guard-1
			route 10.5.0.0/16 dev flannel.1 proto 211 metric 1048576
			route 10.5.2.0/24 via 192.0.2.3 dev eth0 proto 211
			route unreachable 10.5.0.0/16 dev  proto 211 metric 4294967294`},
		{"cleaned up", func(w *world) { w.masq = true }, func(w *world) { w.starts(0, modeUserspace); w.stops(0, true); w.cleansUp(0) }, ``},
		{"killed", func(w *world) { w.direct = true }, func(w *world) { w.starts(0, modeUserspace); w.stops(0, true) }, `
			address flannel.1 10.5.1.0/32
			claim 1
			file subnet.env 0644: FLANNEL_NETWORK=10.5.0.0/16 FLANNEL_SUBNET=10.5.1.1/24 FLANNEL_MTU=1450 FLANNEL_IPMASQ=false
			file subnet.env.node 0600: id, vni 1, network 10.5.0.0/16, public 192.0.2.2, wrote subnet.env
			link flannel.1 tun mtu 1450 alias overlayd up
			nft inet overlayd-guard-1
			route 10.5.0.0/16 dev flannel.1 proto 211 metric 1048576
			route unreachable 10.5.0.0/16 dev  proto 211 metric 4294967294`},
		{"flanneld, which leaves what a peer had before it moved", func(w *world) { w.filter = filterIPT }, func(w *world) {
			w.starts(0, modeFlanneld)
			w.learns(0, 0, 0, drawn)
			w.starts(1, modeKernel)
			w.moves(1, 9)
		}, `
			address flannel.1 10.5.1.0/32
			fdb flannel.1 ` + macOf3 + ` dst 192.0.2.3
			fdb flannel.1 ` + plainMAC("192.0.2.9", 1, 0) + ` dst 192.0.2.9
			file subnet.env 0644: FLANNEL_NETWORK=10.5.0.0/16 FLANNEL_SUBNET=10.5.1.1/24 FLANNEL_MTU=1450 FLANNEL_IPMASQ=false
			iptables-nft ip filter -A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
			iptables-nft ip filter FLANNEL-FWD
			iptables-nft ip filter FLANNEL-FWD 1: -s 10.5.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
			iptables-nft ip filter FLANNEL-FWD 2: -d 10.5.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
			link flannel.1 vxlan id 1 local 192.0.2.2 dev eth0 port 8472 mtu 1450 mac ` + drawn + ` up
			neighbour flannel.1 10.5.2.0 mac ` + plainMAC("192.0.2.9", 1, 0) + `
			route 10.5.2.0/24 via 10.5.2.0 dev flannel.1 proto boot onlink`},
	} {
		w := plainPair(c.world)
		always := w.objects(0)
		c.events(w)
		got := slices.DeleteFunc(w.objects(0), func(line string) bool { return slices.Contains(always, line) })
		slices.Sort(got)
		want := strings.Split(strings.ReplaceAll(strings.TrimSpace(c.want), "\t", ""), "\n")
		if diff := cmp.Diff(want, append(got, make([]string, 1)[:1-min(1, len(got))]...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// TestPlainMACs: which MACs the lease of the first host has after some events.
func TestPlainMACs(t *testing.T) {
	const drawn = "02:00:00:00:00:07"
	flanneld := func(w *world) { w.starts(0, modeFlanneld); w.learns(0, 0, 0, drawn) }
	for _, c := range []struct {
		name   string
		events func(*world)
		want   string
	}{
		{"overlayd's own", func(w *world) { w.starts(0, modeUserspace) }, macOf2},
		{"it moves", func(w *world) { w.starts(0, modeUserspace); w.moves(0, 3) }, macOf3},
		{"it moves, stopped", func(w *world) { w.starts(0, modeKernel); w.stops(0, true); w.moves(0, 3); w.starts(0, modeUserspace) }, macOf3},
		{"flanneld keeps a vxlan device", func(w *world) { w.starts(0, modeKernel); w.stops(0, false); w.starts(0, modeFlanneld) }, macOf2},
		{"and that of drain", func(w *world) { w.starts(0, modeUserspace); w.drainsToKernel(0); w.starts(0, modeFlanneld) }, macOf2},
		{"but no TUN device", func(w *world) { w.starts(0, modeUserspace); w.stops(0, false); w.starts(0, modeFlanneld) }, ""},
		{"overlayd keeps flanneld's", func(w *world) { flanneld(w); w.stops(0, true); w.starts(0, modeUserspace) }, drawn},
		{"also when it moves", func(w *world) { flanneld(w); w.stops(0, true); w.starts(0, modeUserspace); w.moves(0, 3) }, drawn},
		{"also after a cleanup", func(w *world) {
			flanneld(w)
			w.stops(0, true)
			w.starts(0, modeKernel)
			w.stops(0, true)
			w.cleansUp(0)
			w.starts(0, modeKernel)
		}, drawn},
	} {
		w := plainPair(func(*world) {})
		if c.events(w); w.hosts[0].overlays[0].macs[0] != c.want {
			t.Errorf("%s: %s, want %s", c.name, w.hosts[0].overlays[0].macs[0], c.want)
		}
	}
}

// TestDifference: what lacks, what is too much, also twice, and what may be there.
func TestDifference(t *testing.T) {
	got := difference([]string{"a", "b", "b"}, []string{"c"}, []string{"b", "c", "c", "d"})
	if want := []string{"lacks a", "lacks b", "has   c", "has   d"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
