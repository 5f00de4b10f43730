package rtnl

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// TestOurRoutesAsTheLibrary has routes of every kind that overlayd makes, and some of others.
func TestOurRoutesAsTheLibrary(t *testing.T) {
	n, c, index := device(t, "dummy0")
	n.Addr("dummy0", "192.0.2.1/24")
	n.Addr("dummy0", "2001:db8::1/64")
	n.Must(func() error {
		if err := c.SetLink(index, 0, "", true); err != nil {
			return err
		}
		gateway, gateway6 := netip.MustParseAddr("192.0.2.9").AsSlice(), netip.MustParseAddr("2001:db8::9").AsSlice()
		for _, r := range []netlink.Route{
			{LinkIndex: index, Dst: IPNet(netip.MustParsePrefix("10.42.0.0/16")), Scope: netlink.SCOPE_LINK, Protocol: RouteProtocol},
			{LinkIndex: index, Dst: IPNet(netip.MustParsePrefix("fd42::/48")), Protocol: RouteProtocol},
			{Dst: IPNet(netip.MustParsePrefix("10.42.1.0/24")), Gw: gateway, Protocol: RouteProtocol, Priority: 7},
			{Dst: IPNet(netip.MustParsePrefix("10.42.2.0/24")), Gw: gateway, Flags: unix.RTNH_F_ONLINK, LinkIndex: index, Protocol: RouteProtocol},
			{Dst: IPNet(netip.MustParsePrefix("10.42.3.0/24")), Via: &netlink.Via{AddrFamily: unix.AF_INET6, Addr: gateway6}, LinkIndex: index, Protocol: RouteProtocol},
			{Dst: IPNet(netip.MustParsePrefix("10.42.4.0/24")), Type: unix.RTN_BLACKHOLE, Protocol: RouteProtocol},
			{Dst: IPNet(netip.MustParsePrefix("fd42:0:0:1::/64")), Gw: gateway6, Protocol: RouteProtocol},
			{Dst: IPNet(netip.MustParsePrefix("0.0.0.0/0")), Gw: gateway, Protocol: RouteProtocol},
			{LinkIndex: index, Dst: IPNet(netip.MustParsePrefix("10.42.5.0/24")), Scope: netlink.SCOPE_LINK, Protocol: RouteProtocol, Table: 100},
			{LinkIndex: index, Dst: IPNet(netip.MustParsePrefix("10.42.6.0/24")), Scope: netlink.SCOPE_LINK, Protocol: 7},
		} {
			if err := c.h.RouteAdd(&r); err != nil {
				t.Errorf("add %s: %v", r.Dst, err)
			}
		}
		return nil
	})
	got, err := c.ourRoutes()
	if err != nil {
		t.Fatal(err)
	}
	// A kernel before 4.20 sends all routes.
	if err := unix.SetsockoptInt(c.raw.Socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 0); err != nil {
		t.Fatal(err)
	}
	all, err := c.ourRoutes()
	if diff := cmp.Diff(got, all); diff != "" || err != nil {
		t.Errorf("from a kernel that sends all: %v, %s", err, diff)
	}
	want, err := c.h.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil || len(want) != 8 {
		t.Fatalf("the library lists %v, %v", want, err)
	}
	key := func(r netlink.Route) string { return r.String() }
	for _, rs := range [][]netlink.Route{got, want} {
		slices.SortFunc(rs, func(a, b netlink.Route) int { return slices.Compare([]byte(key(a)), []byte(key(b))) })
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the library and ourRoutes differ: %s", d)
	}
	for _, r := range got {
		if err := c.DeleteRoute(r); err != nil {
			t.Error(err)
		}
	}
	if left, err := c.ourRoutes(); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestForeignRoutesAreNotListed has a routing daemon with 20 000 routes. The library, which lists
// all of them to find ours, is the measure.
func TestForeignRoutesAreNotListed(t *testing.T) {
	n, c, index := device(t, "dummy0")
	n.Must(func() error { return c.SetLink(index, 0, "", true) })
	for i := range 20_000 {
		dst := netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 0}), 24)
		r := c.request(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
		r.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET, Table: unix.RT_TABLE_MAIN, Protocol: 7, Scope: unix.RT_SCOPE_LINK, Type: unix.RTN_UNICAST, Dst_len: 24}})
		r.AddData(nl.NewRtAttr(unix.RTA_DST, dst.Addr().AsSlice()))
		r.AddData(nl.NewRtAttr(unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(index))))
		if _, err := r.Execute(unix.NETLINK_ROUTE, 0); err != nil {
			t.Fatal(err)
		}
	}
	n.Must(func() error { return c.SetRoutes(index, whole("10.42.0.0/16")) })
	best := func(list func() ([]netlink.Route, error)) time.Duration {
		fastest := time.Hour
		for range 5 {
			start := time.Now()
			if routes, err := list(); err != nil || len(routes) != 1 {
				t.Fatalf("%v, %v", routes, err)
			}
			fastest = min(fastest, time.Since(start))
		}
		return fastest
	}
	all := best(func() ([]netlink.Route, error) {
		return c.h.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
	})
	ours := best(c.ourRoutes)
	t.Logf("all routes in %v, ours in %v", all, ours)
	if ours > all/5 {
		t.Errorf("our routes take %v to list, all routes %v", ours, all)
	}
}

func TestParseRouteRefusesRubbish(t *testing.T) {
	good := (&nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET, Table: unix.RT_TABLE_MAIN, Protocol: RouteProtocol}}).Serialize()
	if r, ok := ParseRoute(good); !ok || Prefix(r.Dst) != netip.MustParsePrefix("0.0.0.0/0") {
		t.Errorf("the default route is %v", r)
	}
	for name, m := range map[string][]byte{
		"empty":         nil,
		"short":         good[:8],
		"odd":           append(slices.Clone(good), 0),
		"bad attribute": append(slices.Clone(good), 200, 0, 1, 0),
		"cloned":        (&nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET, Table: unix.RT_TABLE_MAIN, Protocol: RouteProtocol, Flags: unix.RTM_F_CLONED}}).Serialize(),
		"too long":      (&nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET, Table: unix.RT_TABLE_MAIN, Dst_len: 33}}).Serialize(),
	} {
		if r, ok := ParseRoute(m); ok {
			t.Errorf("%s: read as %v", name, r)
		}
	}
}
