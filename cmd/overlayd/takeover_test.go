package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
)

// takeover is a host that is flanneld's and becomes overlayd's, and back, while its pod has traffic
// with that of a peer, which stays as flanneld left it, and with the network outside.
type takeover struct {
	*flannelHost
	t       *testing.T
	filter  packetFilter
	peer    *flannelHost
	site    *site
	a, b    *pod
	before  string // of the host, before any flanneld
	index   []int  // of its devices
	meters  []*meter
	callers []*caller // to the network outside
}

// newTakeover prepares the hosts of a network with this config.
func newTakeover(t *testing.T, c *cluster, filter packetFilter, config string) *takeover {
	t.Helper()
	networks := prefixes("10.5.0.0/16", "fd00:5::/48")
	first, second := prefixes("10.5.1.0/24", "fd00:5:0:7::/64"), prefixes("10.5.2.0/24", "fd00:5:0:3::/64")
	gone := prefixes("10.5.9.0/24", "fd00:5:0:9::/64")
	if config != dualNetwork {
		networks, first, second, gone = networks[:1], first[:1], second[:1], gone[:1]
	}
	k := &takeover{t: t, filter: filter, flannelHost: flannelOn(c.hosts[0], networks, first), peer: flannelOn(c.hosts[1], networks, second)}
	k.site = k.host.site(0)
	k.furnish()
	k.a, k.b = k.pod(0, 0), k.peer.pod(0, 0)
	k.before = k.state()
	// A peer that went away while flanneld was down: flanneld would never remove it.
	stale := &flannelHost{host: &host{addrs: []netip.Addr{netip.MustParseAddr("192.0.2.99"), netip.MustParseAddr("2001:db8::99")}}, subnets: gone, macs: k.peer.macs}
	stale.macs = []net.HardwareAddr{{2, 0, 0, 0, 0, 9}, {2, 0, 0, 0, 0, 10}}[:len(gone)]
	for _, f := range []*flannelHost{k.flannelHost, k.peer} {
		f.direct = config == directNetwork
		f.devices()
		f.writeRules(filter)
	}
	k.meet(k.peer)
	k.meet(stale)
	k.peer.meet(k.flannelHost)
	for i := range first {
		k.index = append(k.index, k.device(i).Index)
	}
	return k
}

// furnish gives the host what is nobody's business: links, routes, rules.
func (k *takeover) furnish() {
	for _, command := range []string{
		"ip link add other0 type vxlan id 42 dev eth0 dstport 4789 local 192.0.2.2",
		"ip link set other0 up",
		"ip link add other1 type bridge",
		"ip addr add 10.77.0.1/24 dev other1",
		"ip link set other1 up",
		"ip route add 10.78.0.0/24 via 192.0.2.1 proto static metric 7",
		"ip nexthop add id 7 via 192.0.2.1 dev eth0 proto static",
		"ip route add 10.79.0.0/24 nhid 7",
		"ip neigh add 10.77.0.5 lladdr 02:00:00:00:00:05 dev other1 nud permanent",
		"bridge fdb append 00:00:00:00:00:00 dev other0 dst 192.0.2.50",
		"nft add table inet guard",
		"nft add chain inet guard in { type filter hook input priority 10; }",
		"nft add rule inet guard in tcp dport 9 drop",
		"iptables -w -t nat -A POSTROUTING -s 172.17.0.0/16 -o eth0 -j MASQUERADE",
		"iptables -w -A FORWARD -s 172.17.0.0/16 -j ACCEPT",
		"ip6tables -w -t nat -A POSTROUTING -s fd00:17::/64 -o eth0 -j MASQUERADE",
		"ip6tables -w -A FORWARD -s fd00:17::/64 -j ACCEPT",
	} {
		words := strings.Fields(command)
		k.Run(words[0], words[1:]...)
	}
	if k.filter == filterNFT {
		return // flannel's accept there does not help against FORWARD DROP
	}
	for _, h := range []*host{k.host, k.peer.host} {
		h.Run("iptables", "-w", "-P", "FORWARD", "DROP")
		h.Run("ip6tables", "-w", "-P", "FORWARD", "DROP")
	}
}

// state is everything of the host that overlayd could leave something in, once the kernel has
// made up its mind about IPv6 addresses.
func (h *host) state() string {
	h.c.t.Helper()
	eventually(h.c.t, patience, "IPv6 addresses", func() error {
		if s := h.Run("ip", "-6", "-o", "addr", "show", "tentative"); s != "" {
			return fmt.Errorf("tentative: %s", s)
		}
		return nil
	})
	timers := regexp.MustCompile(`_timer +\S+`) // of bridges
	var lines []string
	for _, command := range []string{
		"ip -d -o link", "ip -d -o addr", "ip -d -4 route show table all", "ip -d -6 route show table all", "ip rule", "ip -6 rule",
		"ip -d nexthop", "ip -d neigh show nud permanent", "bridge -d fdb",
	} {
		words := strings.Fields(command)
		for line := range strings.Lines(h.Run(words[0], words[1:]...)) {
			lines = append(lines, command+": "+timers.ReplaceAllString(strings.TrimSpace(line), ""))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n" + h.ruleset()
}

func (h *host) device(i int) (v *netlink.Vxlan) {
	h.c.t.Helper()
	h.Must(func() error {
		l, err := netlink.LinkByName(flannelDevice(i))
		if err != nil {
			return err
		}
		var ok bool
		if v, ok = l.(*netlink.Vxlan); !ok {
			return fmt.Errorf("%s is a %s", l.Attrs().Name, l.Type())
		}
		return nil
	})
	return v
}

// startTraffic sends a datagram per millisecond each way and opens a connection per millisecond to
// the network outside, in every family.
func (k *takeover) startTraffic() {
	k.t.Helper()
	for i := range k.subnets {
		from, to := k.a.addrs[i], k.b.addrs[i]
		eventually(k.t, patience, "pods reach each other", func() error { return echoWithin(k.a.NS, to, 56, 100*time.Millisecond) })
		for _, way := range []struct {
			from, to *pod
			addr     netip.Addr
		}{{k.a, k.b, to}, {k.b, k.a, from}} {
			m, err := startMeter(way.from.NS, way.to.NS, way.addr, time.Millisecond)
			if err != nil {
				k.t.Fatal(err)
			}
			m.most.Store(queueTakes)
			k.meters = append(k.meters, m)
		}
		c, err := startCaller(k.a.NS, k.site.outside, k.site.beyond[i], time.Millisecond)
		if err != nil {
			k.t.Fatal(err)
		}
		k.callers = append(k.callers, c)
	}
}

// traffic lets it go on for a while.
func (k *takeover) traffic() {
	k.t.Helper()
	for _, m := range k.meters {
		waitTraffic(k.t, m, 300)
	}
}

// checkTraffic stops it, and wants all of it to have arrived, and as the host's what came outside.
func (k *takeover) checkTraffic() {
	k.t.Helper()
	for _, m := range k.meters {
		if lost := m.finish(); lost > 0 {
			k.t.Errorf("%d of %d datagrams lost, longest gap %s", lost, m.sent.Load(), time.Duration(m.gap.Load()))
		} else {
			k.t.Logf("%d datagrams, none lost", m.sent.Load())
		}
	}
	for i, c := range k.callers {
		sent, sources := c.finish()
		if want := map[netip.Addr]int{k.site.inside[i]: sent}; sent < 300 || !cmp.Equal(sources, want, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })) {
			k.t.Errorf("outside %d connections came as %v, want %v", sent, sources, want)
		} else {
			k.t.Logf("%d connections outside, all masqueraded", sent)
		}
	}
}

// checkTaken wants the host to be overlayd's: with flannel's devices and subnets, its rules replaced,
// what it forgot removed.
func (k *takeover) checkTaken() {
	k.t.Helper()
	for i, mac := range k.macs {
		if d := k.device(i); d.Index != k.index[i] || d.HardwareAddr.String() != mac.String() {
			k.t.Errorf("%s has index %d and MAC %s, want %d and %s", d.Name, d.Index, d.HardwareAddr, k.index[i], mac)
		}
		if got := k.gateways()[i].Masked(); got != k.subnets[i] {
			k.t.Errorf("subnet %s, want %s", got, k.subnets[i])
		}
	}
	if rules := k.ruleset(); strings.Contains(rules, "flannel-ip") || strings.Contains(rules, "FLANNEL") || !strings.Contains(strings.ToLower(rules), "overlayd-1") {
		k.t.Errorf("want flannel's rules replaced by overlayd's:\n%s", rules)
	}
	if s := k.state(); strings.Contains(s, "10.5.9.") || strings.Contains(s, "fd00:5:0:9:") || strings.Contains(s, "02:00:00:00:00:09") {
		k.t.Errorf("the peer that is gone has not gone:\n%s", s)
	}
}

// checkBack wants what overlayd has left to be what a flanneld takes over (5.6).
func (k *takeover) checkBack() {
	k.t.Helper()
	for i := range k.subnets {
		d := k.device(i)
		eth0 := 0
		k.Must(func() error {
			l, err := netlink.LinkByName("eth0")
			if err == nil {
				eth0 = l.Attrs().Index
			}
			return err
		})
		if d.VxlanId != 1 || d.VtepDevIndex != eth0 || !d.SrcAddr.Equal(k.addrs[i].AsSlice()) || len(d.Group) > 0 || d.L2miss || d.Port != 8472 || d.GBP {
			k.t.Errorf("flanneld would not take %s: %+v", d.Name, d)
		}
		if d.HardwareAddr.String() != k.macs[i].String() {
			k.t.Errorf("MAC of %s is %s, want %s", d.Name, d.HardwareAddr, k.macs[i])
		}
		want := netip.PrefixFrom(k.subnets[i].Addr(), k.subnets[i].Addr().BitLen()).String()
		if got := k.Run("ip", "-br", "addr", "show", "dev", d.Name, "scope", "global"); !slices.Equal(strings.Fields(got)[2:], []string{want}) {
			k.t.Errorf("addresses %q, want %s", got, want)
		}
	}
}

// checkCleanup wants the host to be as it was before there was any flanneld.
func (k *takeover) checkCleanup() {
	k.t.Helper()
	p := k.overlayd("cleanup", "--subnet-file", k.subnetFile)
	if code := p.wait(patience); code != 0 {
		k.t.Errorf("cleanup: exit code %d: %s", code, p.text())
	}
	if diff := cmp.Diff(strings.Split(k.before, "\n"), strings.Split(k.state(), "\n")); diff != "" {
		k.t.Errorf("the host after cleanup (-before +after):\n%s", diff)
	}
	if left, err := os.ReadDir(filepath.Dir(k.subnetFile)); len(left) > 0 || err != nil {
		k.t.Errorf("files are left: %v %v", left, err)
	}
}

// TestTakeover: overlayd takes over what flanneld left, gives it back to a flanneld, takes
// it over again, and nobody on the network notices; then it removes all of it.
func TestTakeover(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		filter packetFilter
		name   string
		config string
		under  []string
		flags  []string
	}{
		{filterLegacy, "v4", testNetwork, []string{under4}, nil},
		{filterNFT, "v4", testNetwork, []string{under4}, nil},
		{filterIPT, "dual", dualNetwork, []string{under4, under6}, nil},
		{filterNFT, "direct", directNetwork, []string{under4}, []string{"--ip-blackhole-route"}},
	} {
		t.Run(string(c.filter)+"/"+c.name, func(t *testing.T) {
			t.Parallel()
			cluster := newClusterOn(t, c.under, 2, c.filter.in(c.config))
			c.filter.use(cluster)
			k := newTakeover(t, cluster, c.filter, c.config)
			k.putLease(k.flannelHost)
			k.putLease(k.peer)
			up := func() { k.up(append([]string{"--dataplane", modeKernel, "--ip-masq"}, c.flags...)...) }
			k.play(up, k.checkLeases, func() { k.putLease(k.flannelHost) })
		})
	}
}

// play takes the host over, gives it back, takes it over again and cleans up. up starts overlayd,
// checkStore looks at what it publishes, and publish does so as flanneld.
func (k *takeover) play(up, checkStore, publish func()) {
	k.t.Helper()
	k.startTraffic()
	k.traffic()
	up()
	k.traffic()
	k.checkTaken()
	checkStore()
	k.daemon.stop(unix.SIGTERM)
	k.traffic()
	k.checkBack()
	// What a flanneld does that starts on the host:
	k.meet(k.peer)
	k.writeRules(k.filter)
	publish()
	k.traffic()
	up()
	k.traffic()
	k.checkTaken()
	k.checkTraffic()
	k.daemon.stop(unix.SIGTERM)
	k.checkCleanup()
}

// putLease writes the lease of a flanneld.
func (k *takeover) putLease(f *flannelHost) {
	k.t.Helper()
	granted, err := k.c.client.Grant(k.t.Context(), 24*60*60)
	if err != nil {
		k.t.Fatal(err)
	}
	key, value := f.lease()
	if _, err := k.c.client.Put(k.t.Context(), key, value, clientv3.WithLease(granted.ID)); err != nil {
		k.t.Fatal(err)
	}
}

// checkLeases wants both leases to be as flanneld wrote them, and such that it reads them (3).
func (k *takeover) checkLeases() {
	k.t.Helper()
	all, err := k.c.client.Get(k.t.Context(), strings.TrimSuffix(subnets, "/"), clientv3.WithPrefix())
	if err != nil {
		k.t.Fatal(err)
	}
	want, got := map[string]string{}, map[string]string{}
	for _, f := range []*flannelHost{k.flannelHost, k.peer} {
		key, value := f.lease()
		want[key] = value
	}
	keys := regexp.MustCompile(`(\d+\.\d+.\d+.\d+)-(\d+)(?:&([a-f\d:]+)-(\d+))?$`)
	for _, kv := range all.Kvs {
		got[string(kv.Key)] = string(kv.Value)
		var attrs struct {
			PublicIP, PublicIPv6       netip.Addr
			BackendType                string
			BackendData, BackendV6Data struct {
				VNI     int
				VtepMAC string
			}
		}
		if err := json.Unmarshal(kv.Value, &attrs); err != nil || attrs.BackendType != "vxlan" || !keys.Match(kv.Key) {
			k.t.Errorf("flanneld does not read %s: %s (%v)", kv.Key, kv.Value, err)
		}
		ttl, err := k.c.client.TimeToLive(k.t.Context(), clientv3.LeaseID(kv.Lease))
		if err != nil || ttl.TTL <= 0 || ttl.TTL > 24*60*60 {
			k.t.Errorf("%s has a TTL of %v s (%v)", kv.Key, ttl, err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		k.t.Errorf("leases (-flanneld's +now):\n%s", diff)
	}
}

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, s := range texts {
		list = append(list, netip.MustParsePrefix(s))
	}
	return list
}
