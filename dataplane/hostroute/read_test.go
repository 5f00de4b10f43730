package hostroute

import (
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// TestClassifyBesideAnotherFlannel: two flannelds with a network each have direct routes through the same peers.
// Each is known as such, unless the gateway routes something else too.
func TestClassifyBesideAnotherFlannel(t *testing.T) {
	direct := func(dst string) netlink.Route {
		return netlink.Route{Dst: rtnl.IPNet(prefix(dst)), Gw: net.IP{192, 0, 2, 3}, LinkIndex: 2, Type: unix.RTN_UNICAST, Protocol: unix.RTPROT_BOOT}
	}
	for other, flannels := range map[string]bool{"10.6.2.0/24": true, "10.6.0.0/16": false, "0.0.0.0/0": false} {
		out, taken := classify([]netlink.Route{direct(other), direct("10.5.2.0/24")}, wanted())
		if is := len(out) == 1 && out[0].owner == flannel && len(taken) == 0; is != flannels {
			t.Errorf("beside a route to %s: flannel's is %v, others' %v; want it to be flannel's: %v", other, out, taken, flannels)
		}
	}
}

func TestClassify(t *testing.T) {
	const none = "none"
	for _, tc := range []struct {
		name   string
		change func(*netlink.Route)
		want   string // owner, none, or taken
	}{
		{"ours", func(r *netlink.Route) {}, "ours"},
		{"ours with a metric", func(r *netlink.Route) { r.Priority = 5 }, none},
		{"of the kernel dataplane", func(r *netlink.Route) { r.Gw, r.Flags = r.Dst.IP, unix.RTNH_F_ONLINK }, "device"},
		{"of a kernel that names the nexthop only", func(r *netlink.Route) { r.Gw = nil }, "device"},
		{"of the userspace dataplane", func(r *netlink.Route) { r.Gw, r.Dst = nil, rtnl.IPNet(prefix("10.5.0.0/16")) }, "device"},
		{"of flannel", func(r *netlink.Route) { r.Protocol = unix.RTPROT_BOOT }, "flannel"},
		{"of flannel by its device", func(r *netlink.Route) {
			r.Protocol, r.Gw, r.Flags = unix.RTPROT_BOOT, r.Dst.IP, unix.RTNH_F_ONLINK
		}, "device"},
		{"by hand, to a part of a subnet", func(r *netlink.Route) {
			r.Protocol, r.Dst = unix.RTPROT_BOOT, rtnl.IPNet(prefix("10.5.2.0/25"))
		}, "taken"},
		{"by hand, through a router", func(r *netlink.Route) { r.Protocol, r.Gw = unix.RTPROT_BOOT, net.IP{192, 0, 2, 1} }, "taken"},
		{"by hand, through the overlay", func(r *netlink.Route) { r.Protocol, r.Gw = unix.RTPROT_BOOT, net.IP{10, 5, 9, 9} }, "taken"},
		{"by hand, with a metric", func(r *netlink.Route) { r.Protocol, r.Priority = unix.RTPROT_BOOT, 9 }, none},
		{"of a routing daemon", func(r *netlink.Route) { r.Protocol = unix.RTPROT_BGP }, "taken"},
		{"outside the network", func(r *netlink.Route) { r.Dst = rtnl.IPNet(prefix("10.6.2.0/24")) }, none},
		{"unreachable", func(r *netlink.Route) { r.Protocol, r.Type, r.Gw = unix.RTPROT_STATIC, unix.RTN_UNREACHABLE, nil }, "taken"},
		{"our blackhole", func(r *netlink.Route) { r.Type, r.Gw, r.Priority = unix.RTN_BLACKHOLE, nil, 7 }, "ours"},
		{"flannel's blackhole", func(r *netlink.Route) { r.Type, r.Gw, r.Protocol = unix.RTN_BLACKHOLE, nil, unix.RTPROT_BOOT }, "flannel"},
		{"somebody's blackhole", func(r *netlink.Route) { r.Type, r.Gw, r.Protocol = unix.RTN_BLACKHOLE, nil, unix.RTPROT_STATIC }, "taken"},
		{"IPv6, ours", func(r *netlink.Route) {
			r.Dst, r.Gw, r.Priority = rtnl.IPNet(prefix("fd00:0:0:2::/64")), net.ParseIP("2001:db8::3"), 1024
		}, "ours"},
		{"IPv6, of flannel", func(r *netlink.Route) {
			r.Dst, r.Gw, r.Priority, r.Protocol = rtnl.IPNet(prefix("fd00:0:0:2::/64")), net.ParseIP("2001:db8::3"), 1024, unix.RTPROT_BOOT
		}, "flannel"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			other := netlink.Route{Dst: rtnl.IPNet(prefix("0.0.0.0/0")), Gw: net.IP{192, 0, 2, 1}, LinkIndex: 2, Type: unix.RTN_UNICAST}
			r := netlink.Route{Dst: rtnl.IPNet(prefix("10.5.2.0/24")), Gw: net.IP{192, 0, 2, 3}, LinkIndex: 2, Type: unix.RTN_UNICAST, Protocol: rtnl.RouteProtocol}
			tc.change(&r)
			second := netlink.Route{Dst: rtnl.IPNet(prefix("10.6.2.0/24")), Gw: net.IP{192, 0, 2, 3}, LinkIndex: 2, Type: unix.RTN_UNICAST, Protocol: rtnl.RouteProtocol}
			out, taken := classify([]netlink.Route{other, second, r}, wanted())
			got := none
			switch {
			case len(taken) == 1 && taken[rtnl.Prefix(r.Dst)]:
				got = "taken"
			case len(out) == 1:
				got = [...]string{"ours", "flannel", "device"}[out[0].owner]
			}
			if len(out)+len(taken) > 1 || got != tc.want {
				t.Errorf("got %s (%v, %v), want %s", got, out, taken, tc.want)
			}
		})
	}
}

func TestIsNeighbour(t *testing.T) {
	unicast := func(change func(*netlink.Route)) netlink.Route {
		r := netlink.Route{LinkIndex: 2, Type: unix.RTN_UNICAST}
		change(&r)
		return r
	}
	for name, tc := range map[string]struct {
		r    netlink.Route
		want bool
	}{
		"on-link":   {unicast(func(*netlink.Route) {}), true},
		"gateway":   {unicast(func(r *netlink.Route) { r.Gw = net.IP{192, 0, 2, 1} }), false},
		"local":     {unicast(func(r *netlink.Route) { r.Type = unix.RTN_LOCAL }), false},
		"multipath": {unicast(func(r *netlink.Route) { r.MultiPath = make([]*netlink.NexthopInfo, 2) }), false},
		"via":       {unicast(func(r *netlink.Route) { r.Via = &netlink.Via{} }), false},
		"encap":     {unicast(func(r *netlink.Route) { r.Encap = &netlink.SEG6Encap{} }), false},
		"nowhere":   {netlink.Route{}, false},
	} {
		if got := isNeighbour(tc.r); got != tc.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

func TestHasNeighbours(t *testing.T) {
	for name, tc := range map[string]struct {
		a    netlink.LinkAttrs
		want bool
	}{
		"Ethernet":       {netlink.LinkAttrs{Name: "eth0", Flags: net.FlagUp | net.FlagBroadcast}, true},
		"loopback":       {netlink.LinkAttrs{Name: "lo", Flags: net.FlagLoopback}, false},
		"point to point": {netlink.LinkAttrs{Name: "wg0", Flags: net.FlagPointToPoint}, false},
		"no ARP":         {netlink.LinkAttrs{Name: "ipvl0", RawFlags: unix.IFF_NOARP}, false},
		"flannel's":      {netlink.LinkAttrs{Name: "flannel-v6.1"}, false},
		"ours":           {netlink.LinkAttrs{Name: "renamed", Alias: rtnl.Alias}, false},
	} {
		if got := hasNeighbours(&tc.a); got != tc.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// message is the body of a route notification.
func message(family uint8, table, protocol, kind uint8, flags uint32, dst, via string) []byte {
	b := make([]byte, unix.SizeofRtMsg)
	p := prefix(dst)
	b[0], b[1], b[4], b[5], b[7] = family, uint8(p.Bits()), table, protocol, kind
	native.PutUint32(b[8:], flags)
	attr := func(typ uint16, v []byte) {
		b = native.AppendUint16(b, uint16(4+len(v)))
		b = native.AppendUint16(b, typ)
		b = append(b, v...)
	}
	attr(unix.RTA_DST, p.Addr().AsSlice())
	if via != "" {
		attr(unix.RTA_GATEWAY, addr(via).AsSlice())
	}
	return b
}

func TestConcerns(t *testing.T) {
	s := newScope(wanted(newPeer("192.0.2.3", "10.5.2.0/24")), Config{Direct: true}, map[int]bool{2: true})
	without := newScope(wanted(newPeer("192.0.2.3", "10.5.2.0/24")), Config{Blackhole: true}, nil)
	idle := newScope(wanted(newPeer("192.0.2.3", "10.5.2.0/24")), Config{}, nil)
	const main, ours, uni = unix.RT_TABLE_MAIN, rtnl.RouteProtocol, unix.RTN_UNICAST
	link := func(index uint32) []byte {
		b := make([]byte, unix.SizeofIfInfomsg)
		native.PutUint32(b[4:], index)
		return b
	}
	v4 := func(table, protocol, kind uint8, dst, via string) []byte {
		return message(unix.AF_INET, table, protocol, kind, 0, dst, via)
	}
	for _, tc := range []struct {
		name       string
		typ, flags uint16
		body       []byte
		want       bool // if direct routes may be wanted; without them only what is inside the network counts
	}{
		{"rule", unix.RTM_NEWRULE, 0, nil, true},
		{"link of a peer", unix.RTM_NEWLINK, 0, link(2), true},
		{"other link", unix.RTM_DELLINK, 0, link(3), false},
		{"short link", unix.RTM_NEWLINK, 0, []byte{1}, false},
		{"underlay route", unix.RTM_NEWROUTE, 0, v4(main, 4, uni, "192.0.2.3/32", "192.0.2.1"), true},
		{"underlay route of a table", unix.RTM_NEWROUTE, 0, v4(77, 4, uni, "192.0.2.0/24", "192.0.2.1"), true},
		{"own address", unix.RTM_DELROUTE, 0, v4(unix.RT_TABLE_LOCAL, 2, unix.RTN_LOCAL, "192.0.2.2/32", ""), true},
		{"direct route", unix.RTM_DELROUTE, 0, v4(main, ours, uni, "10.5.2.0/24", "192.0.2.3"), true},
		{"blackhole", unix.RTM_DELROUTE, 0, v4(main, ours, unix.RTN_BLACKHOLE, "10.5.1.0/24", ""), true},
		{"somebody's", unix.RTM_DELROUTE, 0, v4(main, 4, uni, "10.5.2.0/24", "192.0.2.9"), true},
		{"somebody's of a table", unix.RTM_DELROUTE, 0, v4(77, 4, uni, "10.5.2.0/24", "192.0.2.9"), false},
		{"pod", unix.RTM_NEWROUTE, 0, v4(main, 3, uni, "10.5.1.7/32", ""), false},
		{"the dataplane's", unix.RTM_NEWROUTE, 0, v4(main, ours, uni, "10.5.2.0/24", ""), false},
		{"the dataplane's in the place of another", unix.RTM_NEWROUTE, unix.NLM_F_REPLACE, v4(main, ours, uni, "10.5.2.0/24", ""), true},
		{"another overlay's", unix.RTM_NEWROUTE, 0, v4(main, ours, uni, "10.6.2.0/24", "192.0.2.3"), false},
		{"default route", unix.RTM_NEWROUTE, 0, message(unix.AF_INET6, main, 4, uni, 0, "::/0", "2001:db8::1"), true},
		{"link-local", unix.RTM_NEWROUTE, 0, message(unix.AF_INET6, main, 2, uni, 0, "fe80::/64", ""), false},
		{"multicast", unix.RTM_NEWROUTE, 0, message(unix.AF_INET6, 255, 2, unix.RTN_MULTICAST, 0, "ff00::/8", ""), false},
		{"path MTU", unix.RTM_NEWROUTE, 0, message(unix.AF_INET6, main, 2, uni, unix.RTM_F_CLONED, "2001:db8::3/128", ""), false},
		{"short route", unix.RTM_NEWROUTE, 0, []byte{1}, false},
		{"neighbour", unix.RTM_NEWNEIGH, 0, make([]byte, 64), false},
	} {
		if got := s.concerns(tc.typ, tc.flags, tc.body); got != tc.want {
			t.Errorf("%s: got %v", tc.name, got)
		}
		r, ok := rtnl.ParseRoute(tc.body)
		want := tc.want && ok && prefix("10.5.0.0/16").Overlaps(rtnl.Prefix(r.Dst)) && r.Dst.IP.To4() != nil
		if got := without.concerns(tc.typ, tc.flags, tc.body); got != want {
			t.Errorf("%s, without direct routes: got %v", tc.name, got)
		}
		if idle.concerns(tc.typ, tc.flags, tc.body) {
			t.Errorf("%s concerns who keeps nothing", tc.name)
		}
	}
}

func TestDescribe(t *testing.T) {
	got := []string{describe(route{dst: prefix("10.5.1.0/24"), blackhole: true}.netlink()),
		describe(route{dst: prefix("10.5.2.0/24"), hop: hop{addr("192.0.2.3"), 2}}.netlink())}
	if diff := cmp.Diff([]string{"blackhole 10.5.1.0/24", "direct route 10.5.2.0/24 via 192.0.2.3"}, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzConcerns(f *testing.F) {
	f.Add(uint16(unix.RTM_NEWROUTE), message(unix.AF_INET, unix.RT_TABLE_MAIN, 211, unix.RTN_UNICAST, 0, "10.5.2.0/24", "192.0.2.3"))
	s := newScope(wanted(newPeer("192.0.2.3", "10.5.2.0/24")), Config{Direct: true}, nil)
	f.Fuzz(func(t *testing.T, typ uint16, b []byte) { s.concerns(typ, 0, b) })
}

// TestClassifyInAMixedNetwork: if the overlay network holds addresses of the underlay, an
// administrator's routes are there too. Of those without an owner's mark only what leads to a peer, or
// discards for the own subnet, is flannel's.
func TestClassifyInAMixedNetwork(t *testing.T) {
	w := wanted(newPeer("192.0.2.3", "10.5.2.0/24"))
	w.Underlay = []netip.Prefix{prefix("10.5.200.0/24")}
	peer := w.Peers[0]
	route := func(dst netip.Prefix, via netip.Addr) netlink.Route {
		return netlink.Route{Dst: rtnl.IPNet(dst), Gw: via.AsSlice(), LinkIndex: 2, Type: unix.RTN_UNICAST, Protocol: unix.RTPROT_BOOT}
	}
	blackhole := func(dst netip.Prefix) netlink.Route {
		return netlink.Route{Dst: rtnl.IPNet(dst), Type: unix.RTN_BLACKHOLE, Protocol: unix.RTPROT_BOOT}
	}
	for _, tc := range []struct {
		name  string
		route netlink.Route
		ours  bool // may be replaced and removed
	}{
		{"flannel's, to a peer", route(peer.Subnets[0], peer.Addr), true},
		{"to a peer's subnet by another way", route(peer.Subnets[0], netip.MustParseAddr("192.0.2.77")), false},
		{"to nobody's subnet", route(prefix("10.5.77.0/24"), peer.Addr), false},
		{"to nobody's subnet, through the underlay inside", route(prefix("10.5.77.0/24"), netip.MustParseAddr("10.5.200.9")), false},
		{"flannel's blackhole", blackhole(w.Subnets[0]), true},
		{"somebody's blackhole", blackhole(prefix("10.5.77.0/24")), false},
	} {
		out, taken := classify([]netlink.Route{tc.route}, w)
		if (len(out) == 1) != tc.ours || (len(taken) == 1) == tc.ours {
			t.Errorf("%s: ours %v, others' %v", tc.name, out, taken)
		}
	}
}
