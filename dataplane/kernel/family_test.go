package kernel

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// asFlannel6 are the attributes that flannel's IPv6 device shows.
const asFlannel6 = "vxlan id 1 local 2001:db8::2 dev eth0 srcport 0 0 dstport 8472 nolearning ttl auto ageing 300 udpcsum noudp6zerocsumtx noudp6zerocsumrx"

// newDualHosts makes n hosts on one LAN with both families: eth0 of host i has
// 192.0.2.(2+i)/24 and 2001:db8::(2+i)/64. Their underlays are those named: "4", "6" or "46".
func newDualHosts(tb testing.TB, n int, underlays string) []*host {
	tb.Helper()
	hosts := newHosts(tb, n)
	for i, h := range hosts {
		local6 := fmt.Sprintf("2001:db8::%d", i+2)
		h.Run("ip", "addr", "add", local6+"/64", "dev", "eth0", "nodad")
		four, six := h.cfg.Underlays[0], h.underlay(netip.MustParseAddr(local6))
		h.cfg.Underlays = map[string][]dataplane.Underlay{"4": {four}, "6": {six}, "46": {four, six}}[underlays]
		h.cfg.MTU = map[string]int{"4": 1450, "6": 1430, "46": 1430}[underlays]
	}
	return hosts
}

// subnetsOf are the overlay subnets of host i in the overlay families "4", "6" or "46".
func subnetsOf(i int, overlay string) []netip.Prefix {
	var out []netip.Prefix
	if strings.Contains(overlay, "4") {
		out = append(out, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(i + 1), 0}), 24))
	}
	if strings.Contains(overlay, "6") {
		out = append(out, netip.MustParsePrefix(fmt.Sprintf("fd00:0:0:%d::/64", i+1)))
	}
	return out
}

// peerOf is host i as its peers see it: each subnet by the VTEP of its family, or by the only one.
func (h *host) peerOf(i int, overlay string) (peers []dataplane.Peer) {
	vteps := h.dp.VTEPs()
	for _, v := range vteps {
		p := dataplane.Peer{VTEP: v}
		for _, s := range subnetsOf(i, overlay) {
			if len(vteps) == 1 || s.Addr().Is4() == v.Addr.Is4() {
				p.Subnets = append(p.Subnets, s)
			}
		}
		if len(p.Subnets) > 0 {
			peers = append(peers, p)
		}
	}
	return peers
}

func (h *host) dualWanted(i int, overlay string, peers ...dataplane.Peer) dataplane.Wanted {
	return dataplane.Wanted{
		Subnets:  subnetsOf(i, overlay),
		Networks: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("fd00::/48")},
		MTU:      h.cfg.MTU,
		Peers:    peers,
	}
}

// joinDual opens two hosts and makes them peers.
func joinDual(tb testing.TB, overlay, underlays string) (a, b *host) {
	tb.Helper()
	hosts := newDualHosts(tb, 2, underlays)
	a, b = hosts[0].open(), hosts[1].open()
	a.sync(a.dualWanted(0, overlay, b.peerOf(1, overlay)...))
	b.sync(b.dualWanted(1, overlay, a.peerOf(0, overlay)...))
	return a, b
}

func (h *host) echo(b *host, from, to netip.Addr) {
	h.tb.Helper()
	h.awaitEcho(b, from, to)
	client, server := h.listen(netip.AddrPortFrom(from, 0).String()), b.listen(netip.AddrPortFrom(to, 0).String())
	defer client.Close()
	defer server.Close()
	for _, size := range []int{1, 1300, 1400, 9000, 60000} {
		if err := exchange(client, server, size, 5*time.Second); err != nil {
			h.tb.Errorf("%s to %s: %v", from, to, err)
		}
	}
}

// awaitEcho waits until packets pass: the kernel makes IPv6 addresses usable a while
// after it took them.
func (h *host) awaitEcho(b *host, from, to netip.Addr) {
	h.tb.Helper()
	client, server := h.listen(netip.AddrPortFrom(from, 0).String()), b.listen(netip.AddrPortFrom(to, 0).String())
	defer client.Close()
	defer server.Close()
	for deadline := time.Now().Add(netnstest.Within(5 * time.Second)); ; {
		err := exchange(client, server, 1, 50*time.Millisecond)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			h.tb.Fatalf("%s to %s: %v", from, to, err)
		}
	}
}

func TestTrafficOfEitherFamilyOverEither(t *testing.T) {
	for _, overlay := range []string{"4", "6", "46"} {
		for _, underlays := range []string{"4", "6", "46"} {
			t.Run("overlay "+overlay+" over "+underlays, func(t *testing.T) {
				a, b := joinDual(t, overlay, underlays)
				to := subnetsOf(1, overlay)
				for i, from := range subnetsOf(0, overlay) {
					a.echo(b, from.Addr(), to[i].Addr())
				}
				for _, v := range a.dp.VTEPs() {
					name := deviceName(v.Addr, 1)
					if out := a.Run("ip", "link", "show", name); !strings.Contains(out, fmt.Sprintf("mtu %d ", a.cfg.MTU)) {
						t.Errorf("%s is %s", name, out)
					}
				}
			})
		}
	}
}

// flannelMakes makes on a host what flannel would for a peer, one family by one device.
func (h *host) flannelMakes(peer *host, i int, subnet netip.Prefix, local, remote string) {
	h.tb.Helper()
	dev, mtu := "flannel.1", "1450"
	if subnet.Addr().Is6() {
		dev, mtu = "flannel-v6.1", "1430"
	}
	base := subnet.Addr().String()
	own := subnetsOf(i, "46")[slices.Index([]bool{true, false}, subnet.Addr().Is4())]
	mac := fmt.Sprintf("0e:2a:00:00:%02x:%02x", len(dev), i)
	peerMAC := fmt.Sprintf("0e:2a:00:00:%02x:%02x", len(dev), 1-i)
	if peer.dp != nil {
		for _, v := range peer.dp.VTEPs() {
			if v.Addr.Is4() == subnet.Addr().Is4() {
				peerMAC = v.MAC.String()
			}
		}
	}
	h.Run("ip", "link", "add", dev, "address", mac, "mtu", mtu, "txqueuelen", "0", "type", "vxlan", "id", "1",
		"local", local, "dev", "eth0", "dstport", "8472", "nolearning")
	h.Run("ip", "addr", "add", rtnl.BaseAddrs([]netip.Prefix{own})[0].String(), "dev", dev, "nodad")
	h.Run("ip", "link", "set", dev, "up")
	h.Run("ip", "neigh", "add", base, "lladdr", peerMAC, "dev", dev, "nud", "permanent")
	h.Run("bridge", "fdb", "add", peerMAC, "dst", remote, "dev", dev)
	h.Run("ip", "route", "add", subnet.String(), "via", base, "dev", dev, "onlink")
}

// A dual-stack peer is flannel's, and so is what was on this host: it is taken over
// under traffic of both families, without a lost packet.
func TestTakeOverFromDualStackFlannel(t *testing.T) {
	hosts := newDualHosts(t, 2, "46")
	a, b := hosts[0], hosts[1]
	for i, h := range hosts {
		other := subnetsOf(1-i, "46")
		h.flannelMakes(hosts[1-i], i, other[0], fmt.Sprintf("192.0.2.%d", 2+i), fmt.Sprintf("192.0.2.%d", 3-i))
		h.flannelMakes(hosts[1-i], i, other[1], fmt.Sprintf("2001:db8::%d", 2+i), fmt.Sprintf("2001:db8::%d", 3-i))
	}
	peers := []dataplane.Peer{newPeer("192.0.2.3", "0e:2a:00:00:09:01", "10.5.2.0/24"), newPeer("2001:db8::3", "0e:2a:00:00:0c:01", "fd00:0:0:2::/64")}
	before := a.linkOf("flannel-v6.1").Index
	a.withBothStreams(b, func() {
		a.open()
		for range 3 {
			a.sync(a.dualWanted(0, "46", peers...))
			a.dp.Close()
			a.open()
		}
		a.sync(a.dualWanted(0, "46", peers...))
	})
	if l := a.linkOf("flannel-v6.1"); l.Index != before || l.Alias != rtnl.Alias || l.HardwareAddr.String() != "0e:2a:00:00:0c:00" {
		t.Errorf("the device is %+v", l.LinkAttrs)
	}
	if out := a.Run("ip", "-d", "link", "show", "flannel-v6.1"); !strings.Contains(out, asFlannel6) {
		t.Errorf("want %s in\n%s", asFlannel6, out)
	}
	if out := a.Run("ip", "-6", "route", "show", "proto", "boot") + a.Run("ip", "route", "show", "proto", "boot"); strings.Contains(out, "flannel") {
		t.Errorf("flannel's routes are left: %s", out)
	}
}

// withBothStreams is withStream in both families.
func (h *host) withBothStreams(b *host, change func()) {
	h.tb.Helper()
	h.awaitEcho(b, netip.MustParseAddr("10.5.1.0"), netip.MustParseAddr("10.5.2.0"))
	h.awaitEcho(b, netip.MustParseAddr("fd00:0:0:1::"), netip.MustParseAddr("fd00:0:0:2::"))
	withStreamOf(h.tb, h, b, "10.5.1.0", "10.5.2.0", func() {
		withStreamOf(h.tb, h, b, "fd00:0:0:1::", "fd00:0:0:2::", change)
	})
}

func (h *host) linkOf(name string) *netlink.Vxlan {
	h.tb.Helper()
	var v *netlink.Vxlan
	h.Must(func() error {
		l, err := netlink.LinkByName(name)
		if err == nil {
			v = l.(*netlink.Vxlan)
		}
		return err
	})
	return v
}

// The host gets another address, or another underlay link: the device stays, and only
// what leads nowhere is lost. Nothing comes from the old address any more.
func TestDeviceIsChangedInPlace(t *testing.T) {
	for _, tc := range []struct{ device, prefix, local, from string }{
		{"flannel.1", "192.0.2.77/24", "192.0.2.77", "ip saddr 192.0.2.2"},
		{"flannel-v6.1", "2001:db8::77/64", "2001:db8::77", "ip6 saddr 2001:db8::2"},
	} {
		a, b := joinDual(t, "46", "46")
		before := a.linkOf(tc.device)
		w := *a.dp.last
		a.withBothStreams(b, func() {
			a.Run("ip", "addr", "add", tc.prefix, "dev", "eth0")
			a.dp.Close()
			for i, u := range a.cfg.Underlays {
				if local := netip.MustParseAddr(tc.local); u.Local.Is4() == local.Is4() {
					a.cfg.Underlays[i].Local, a.cfg.Underlays[i].Public = local, local
				}
			}
			a.open()
			a.sync(w)
			a.awaitEcho(b, netip.MustParseAddr("10.5.1.0"), netip.MustParseAddr("10.5.2.0"))
		})
		b.Run("nft", "add table inet old; add chain inet old in { type filter hook prerouting priority 0; };"+
			"add rule inet old in udp dport 8472 "+tc.from+" counter")
		a.awaitEcho(b, netip.MustParseAddr("10.5.1.0"), netip.MustParseAddr("10.5.2.0"))
		a.awaitEcho(b, netip.MustParseAddr("fd00:0:0:1::"), netip.MustParseAddr("fd00:0:0:2::"))
		if out := b.Run("nft", "list", "table", "inet", "old"); !strings.Contains(out, "packets 0 ") {
			t.Errorf("from the old address:\n%s", out)
		}
		after := a.linkOf(tc.device)
		if after.Index != before.Index || after.SrcAddr.String() != tc.local || after.HardwareAddr.String() != before.HardwareAddr.String() {
			t.Errorf("%s was %+v, is %+v", tc.device, before, after)
		}
		a.Run("ip", "link", "add", "other", "type", "veth", "peer", "name", "end")
		a.Run("ip", "link", "set", "other", "up")
		other := netnstestIndex(t, a.NS, "other")
		for i := range a.cfg.Underlays {
			a.cfg.Underlays[i].Link = other
		}
		a.dp.Close()
		a.open()
		if l := a.linkOf(tc.device); l.Index != before.Index || l.VtepDevIndex != other {
			t.Errorf("%s is %+v", tc.device, l)
		}
	}
}

func netnstestIndex(t *testing.T, ns *netnstest.NS, name string) (index int) {
	ns.Must(func() error {
		l, err := netlink.LinkByName(name)
		if err == nil {
			index = l.Attrs().Index
		}
		return err
	})
	return index
}

// A family goes from the underlay, and comes back: its subnets move to the other
// device and back, without a lost packet, and its device goes.
func TestFamilyMovesToTheOtherDevice(t *testing.T) {
	a, b := joinDual(t, "46", "46")
	both := slices.Clone(a.cfg.Underlays)
	reopen := func(h *host, i int, underlays []dataplane.Underlay, peers []dataplane.Peer) {
		h.dp.Close()
		h.cfg.Underlays = underlays
		h.open()
		h.sync(h.dualWanted(i, "46", peers...))
	}
	vteps := b.dp.VTEPs()
	for _, only := range []int{0, 1} {
		peer := dataplane.Peer{VTEP: vteps[only], Subnets: subnetsOf(1, "46")}
		a.withBothStreams(b, func() {
			reopen(a, 0, both[only:only+1], []dataplane.Peer{peer})
			gone := deviceNames(1)[1-only]
			if out, err := a.Output("ip", "link", "show", gone); err == nil {
				t.Errorf("%s stays: %s", gone, out)
			}
			reopen(a, 0, both, []dataplane.Peer{{VTEP: vteps[0], Subnets: subnetsOf(1, "4")}, {VTEP: vteps[1], Subnets: subnetsOf(1, "6")}})
		})
	}
	a.dp.Close()
	a.Run("ip", "link", "set", "flannel-v6.1", "alias", "somebody's")
	a.cfg.Underlays = both[:1]
	a.open()
	a.sync(a.dualWanted(0, "4"))
	a.Run("ip", "link", "show", "flannel-v6.1")
}

// Addresses are on the device of their family, and on the other one if that is missing.
func TestAddressesOfEitherFamily(t *testing.T) {
	for underlays, want := range map[string]map[string][]string{
		"46": {"flannel.1": {"10.5.1.0/32", "10.5.1.1/32"}, "flannel-v6.1": {"fd00:0:0:1::/128", "fd00:0:0:1::1/128"}},
		"4":  {"flannel.1": {"10.5.1.0/32", "10.5.1.1/32", "fd00:0:0:1::/128", "fd00:0:0:1::1/128"}},
		"6":  {"flannel-v6.1": {"10.5.1.0/32", "10.5.1.1/32", "fd00:0:0:1::/128", "fd00:0:0:1::1/128"}},
	} {
		h := newDualHosts(t, 1, underlays)[0].open()
		w := h.dualWanted(0, "46")
		w.Addrs = prefixes("10.5.1.1/32", "fd00:0:0:1::1/128")
		h.sync(w)
		for device, addrs := range want {
			var got []string
			for line := range strings.Lines(h.Run("ip", "-o", "addr", "show", "dev", device, "scope", "global")) {
				got = append(got, strings.Fields(line)[3])
			}
			slices.Sort(got)
			if diff := cmp.Diff(addrs, got); diff != "" {
				t.Errorf("underlays %s, %s: %s", underlays, device, diff)
			}
		}
		w.Addrs = nil
		h.sync(w)
		if out := h.Run("ip", "addr"); strings.Contains(out, "10.5.1.1/") || strings.Contains(out, "1::1/128") {
			t.Errorf("further addresses stay: %s", out)
		}
	}
}

// A direct peer has neighbour and forwarding entry, and no route by the device.
func TestDirectPeer(t *testing.T) {
	for _, nexthops := range []bool{true, false} {
		h := newHosts(t, 1)[0]
		h.cfg.noNexthops = !nexthops
		h.open()
		direct := peerB
		direct.Direct = true
		var kept []string
		for _, line := range objectsOf(wanted(peerB), true) {
			if strings.HasPrefix(line, "neigh ") || strings.HasPrefix(line, "fdb ") {
				kept = append(kept, line)
			}
		}
		for range 2 {
			h.sync(wanted(peerB))
			if diff := cmp.Diff(objectsOf(wanted(peerB), nexthops), h.objects()); diff != "" {
				t.Errorf("nexthops %v, by the device: %s", nexthops, diff)
			}
			h.Run("ip", "route", "replace", "10.5.2.0/24", "via", peerB.Addr.String(), "proto", "211") // hostroute's
			h.sync(wanted(direct))
			if diff := cmp.Diff(kept, h.objects()); diff != "" {
				t.Errorf("nexthops %v, direct: %s", nexthops, diff)
			}
			if out := h.Run("ip", "route", "show", "10.5.2.0/24"); !strings.Contains(out, "via 192.0.2.20 dev eth0") {
				t.Errorf("the route is %s", out)
			}
		}
	}
}

// A direct route is put in the place of ours while nobody has told us of it yet: it
// stays until Sync, and if it goes before that, ours comes back.
func TestRunYieldsToADirectRoute(t *testing.T) {
	h := newHosts(t, 1)[0]
	h.cfg.Resync = 50 * time.Millisecond
	h.open()
	h.sync(wanted(peerB, peerC))
	h.run()
	h.Run("ip", "route", "replace", "10.5.2.0/24", "via", "192.0.2.20", "dev", "eth0", "proto", "211")
	h.Run("ip", "route", "del", "10.5.3.0/24") // a sign that it has looked
	for deadline := time.Now().Add(netnstest.Within(2 * time.Second)); h.Run("ip", "route", "show", "10.5.3.0/24") == ""; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not repaired")
		}
	}
	if out := h.Run("ip", "route", "show", "10.5.2.0/24"); !strings.Contains(out, "dev eth0") {
		t.Errorf("the route is %s", out)
	}
	h.Run("ip", "route", "del", "10.5.2.0/24")
	h.await(wanted(peerB, peerC), 2*time.Second)
}

func TestRunRepairsTheIPv6Device(t *testing.T) {
	for _, args := range []string{
		"-6 route del fd00:0:0:2::/64",
		"-6 neigh del fd00:0:0:2:: dev flannel-v6.1",
		"link del flannel-v6.1",
		"link set flannel-v6.1 down",
		"addr del fd00:0:0:1::/128 dev flannel-v6.1",
		"link del flannel.1",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			a, b := joinDual(t, "46", "46")
			a.run()
			a.Run("ip", strings.Fields(args)...)
			good := func() bool {
				out := a.Run("ip", "-6", "route") + a.Run("ip", "-6", "neigh", "show", "nud", "permanent") + a.Run("ip", "addr") + a.Run("ip", "route")
				for _, part := range []string{"fd00:0:0:2::/64 ", "fd00:0:0:2:: dev flannel-v6.1", "fd00:0:0:1::/128 scope", "10.5.1.0/32 scope", "10.5.2.0/24 "} {
					if !strings.Contains(out, part) {
						return false
					}
				}
				return true
			}
			for deadline := time.Now().Add(netnstest.Within(2 * time.Second)); !good(); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("not repaired")
				}
			}
			a.echo(b, netip.MustParseAddr("fd00:0:0:1::"), netip.MustParseAddr("fd00:0:0:2::"))
			a.echo(b, netip.MustParseAddr("10.5.1.0"), netip.MustParseAddr("10.5.2.0"))
		})
	}
}

// endsAfter is a context that ends when it has been asked a number of times.
type endsAfter struct {
	context.Context
	checks *int
}

func (c endsAfter) Err() error {
	if *c.checks--; *c.checks < 0 {
		return context.Canceled
	}
	return nil
}

// A route of another device leads to the peer, so that IPv6 takes a nexthop only with a
// route to it alone: whenever Sync is broken off, that one goes.
func TestSyncBrokenOffLeavesNoHelpingRoute(t *testing.T) {
	h := newDualHosts(t, 1, "46")[0].open()
	w := h.dualWanted(0, "46", newPeer("2001:db8::3", "0e:2a:00:00:0c:01", "fd00:0:0:2::/64"))
	for n := 0; ; n++ {
		h.Run("ip", "route", "replace", "fd00:0:0:2::/64", "via", "2001:db8::3", "dev", "eth0", "proto", "211") // hostroute's
		h.Run("ip", "nexthop", "flush", "proto", "211")
		h.dp.Close()
		h.open()
		checks := n
		_, err := h.dp.Sync(endsAfter{t.Context(), &checks}, w)
		out := h.Run("ip", "-6", "route", "show", "proto", "211")
		if strings.Contains("\n"+out, "\nfd00:0:0:2:: dev") || !strings.Contains(out, "fd00:0:0:2::/64 ") {
			t.Fatalf("ended after %d checks (%v), there is\n%s", n, err, out)
		}
		if err == nil {
			break
		}
	}
}
