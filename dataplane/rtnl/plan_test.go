package rtnl

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// routeWith is a route of overlayd on link 7, changed.
func routeWith(dst string, change func(*netlink.Route)) netlink.Route {
	r := netlink.Route{LinkIndex: 7, Dst: IPNet(netip.MustParsePrefix(dst)), Scope: netlink.SCOPE_LINK, Protocol: RouteProtocol,
		Type: unix.RTN_UNICAST, Table: unix.RT_TABLE_MAIN}
	if change != nil {
		change(&r)
	}
	return r
}

func TestPlanRoutes(t *testing.T) {
	onLink := func(index int) func(*netlink.Route) { return func(r *netlink.Route) { r.LinkIndex = index } }
	via := func(gw string, flags int) func(*netlink.Route) {
		return func(r *netlink.Route) {
			r.Gw, r.Flags, r.Scope = netip.MustParseAddr(gw).AsSlice(), flags, netlink.SCOPE_UNIVERSE
		}
	}
	blackhole := func(r *netlink.Route) { r.Type, r.LinkIndex = unix.RTN_BLACKHOLE, 0 }
	for _, c := range []struct {
		name                        string
		all                         []netlink.Route
		dsts                        []netip.Prefix
		missing, conflicting, stale string // destinations
	}{
		{name: "nothing there", dsts: prefixes("10.5.0.0/16"), missing: "10.5.0.0/16"},
		{name: "nothing wanted", all: []netlink.Route{routeWith("10.5.0.0/16", nil)}, stale: "10.5.0.0/16"},
		{name: "as wanted", all: []netlink.Route{routeWith("10.5.0.0/16", nil), routeWith("fd00::/48", nil)}, dsts: prefixes("10.5.0.0/16", "fd00::/48")},
		{name: "twice", all: []netlink.Route{routeWith("10.5.0.0/16", nil), routeWith("10.5.0.0/16", func(r *netlink.Route) { r.Priority = 9 })},
			dsts: prefixes("10.5.0.0/16"), stale: "10.5.0.0/16"},
		{name: "on another link", all: []netlink.Route{routeWith("10.5.0.0/16", onLink(8))}, dsts: prefixes("10.5.0.0/16"), missing: "10.5.0.0/16", conflicting: "10.5.0.0/16"},
		{name: "through a gateway on link", all: []netlink.Route{routeWith("10.5.0.0/16", via("10.5.9.9", unix.RTNH_F_ONLINK))},
			dsts: prefixes("10.5.0.0/16"), missing: "10.5.0.0/16", conflicting: "10.5.0.0/16"},
		{name: "of another scope", all: []netlink.Route{routeWith("10.5.0.0/16", func(r *netlink.Route) { r.Scope = netlink.SCOPE_UNIVERSE })},
			dsts: prefixes("10.5.0.0/16"), missing: "10.5.0.0/16", conflicting: "10.5.0.0/16"},
		{name: "IPv6 has no scopes", all: []netlink.Route{routeWith("fd00::/48", func(r *netlink.Route) { r.Scope = netlink.SCOPE_UNIVERSE })}, dsts: prefixes("fd00::/48")},
		{name: "a subnet inside, left on another link", all: []netlink.Route{routeWith("10.5.3.0/24", onLink(8))}, dsts: prefixes("10.5.0.0/16"),
			missing: "10.5.0.0/16", stale: "10.5.3.0/24"},
		{name: "of another overlay that runs", all: []netlink.Route{routeWith("10.6.3.0/24", onLink(8))}, dsts: prefixes("10.5.0.0/16"), missing: "10.5.0.0/16"},
		{name: "a network around it is another's", all: []netlink.Route{routeWith("10.0.0.0/8", onLink(8))}, dsts: prefixes("10.5.0.0/16"), missing: "10.5.0.0/16"},
		{name: "host routes stay", all: []netlink.Route{routeWith("10.5.3.0/24", via("192.0.2.3", 0)), routeWith("10.5.0.0/16", blackhole)},
			dsts: prefixes("10.5.0.0/16"), missing: "10.5.0.0/16"},
	} {
		p := planRoutes(c.all, 7, Routes{Networks: c.dsts, Subnets: c.dsts})
		words := func(rs []netlink.Route) string {
			var s []string
			for _, r := range rs {
				s = append(s, r.Dst.String())
			}
			return strings.Join(s, " ")
		}
		for dst := range p.replaces {
			p.conflicting = append(p.conflicting, routeWith(dst.String(), nil))
		}
		got := [3]string{words(p.missing), words(p.conflicting), words(p.stale)}
		if diff := cmp.Diff([3]string{c.missing, c.conflicting, c.stale}, got); diff != "" {
			t.Errorf("%s: missing, conflicting, stale (-want +got):\n%s", c.name, diff)
		}
	}
}

// TestPlanWholeRoutes: before the route to a smaller network goes, what would then be unreachable goes, and nothing else that is unreachable.
func TestPlanWholeRoutes(t *testing.T) {
	nowhere := func(r *netlink.Route) { r.Type, r.LinkIndex, r.Priority = unix.RTN_UNREACHABLE, 0, NowhereMetric }
	all := []netlink.Route{routeWith("10.5.0.0/18", func(r *netlink.Route) { r.Priority = WholeMetric })}
	for _, dst := range []string{"10.5.0.0/18", "10.5.0.0/16", "10.6.0.0/16"} {
		all = append(all, routeWith(dst, nowhere))
	}
	p := planRoutes(all, 7, Routes{Networks: prefixes("10.5.0.0/16"), Whole: prefixes("10.5.0.0/16")})
	if len(p.missing) != 1 || len(p.stale) != 2 || p.stale[0].Type != unix.RTN_UNREACHABLE || p.stale[0].Dst.String() != "10.5.0.0/18" || p.stale[1].Dst.String() != "10.5.0.0/18" {
		t.Errorf("missing %v, stale %v", p.missing, p.stale)
	}
}

// TestIsHostRoute: a mistake here lets one part delete the routes of another.
func TestIsHostRoute(t *testing.T) {
	gw := func(s string) net.IP { return netip.MustParseAddr(s).AsSlice() }
	for name, c := range map[string]struct {
		change func(*netlink.Route)
		want   bool
	}{
		"link scope":                {nil, false},
		"direct":                    {func(r *netlink.Route) { r.Gw = gw("192.0.2.3") }, true},
		"direct over IPv6":          {func(r *netlink.Route) { r.Gw = gw("2001:db8::3") }, true},
		"of another protocol":       {func(r *netlink.Route) { r.Gw, r.Protocol = gw("192.0.2.3"), 4 }, false},
		"on link":                   {func(r *netlink.Route) { r.Gw, r.Flags = gw("192.0.2.3"), unix.RTNH_F_ONLINK }, false},
		"by the subnet's base":      {func(r *netlink.Route) { r.Gw = gw("10.5.3.0") }, false},
		"on link, and link is down": {func(r *netlink.Route) { r.Gw, r.Flags = gw("192.0.2.3"), unix.RTNH_F_ONLINK|unix.RTNH_F_DEAD }, false},
		"direct, and link is down":  {func(r *netlink.Route) { r.Gw, r.Flags = gw("192.0.2.3"), unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN }, true},
		"blackhole":                 {func(r *netlink.Route) { r.Type, r.LinkIndex = unix.RTN_BLACKHOLE, 0 }, true},
		"foreign blackhole":         {func(r *netlink.Route) { r.Type, r.Protocol = unix.RTN_BLACKHOLE, 3 }, false},
		"unreachable":               {func(r *netlink.Route) { r.Type, r.Priority = unix.RTN_UNREACHABLE, NowhereMetric }, true},
		"unreachable before others": {func(r *netlink.Route) { r.Type = unix.RTN_UNREACHABLE }, false},
		"without a destination":     {func(r *netlink.Route) { r.Dst, r.Gw = nil, gw("192.0.2.3") }, false},
	} {
		if got := IsHostRoute(routeWith("10.5.3.0/24", c.change)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestPrefixConversion(t *testing.T) {
	for _, s := range []string{"0.0.0.0/0", "10.5.1.7/24", "10.5.1.0/32", "::/0", "fd00::1/64", "fd00::/128"} {
		p := netip.MustParsePrefix(s)
		if got := Prefix(IPNet(p)); got != p {
			t.Errorf("%s became %s", p, got)
		}
	}
	_, mapped, err := net.ParseCIDR("10.5.0.0/16")
	if err != nil {
		t.Fatal(err)
	}
	mapped.IP = mapped.IP.To16()
	if got := Prefix(mapped); got != netip.MustParsePrefix("10.5.0.0/16") {
		t.Errorf("the mapped form became %s", got)
	}
	for name, n := range map[string]*net.IPNet{
		"nil": nil, "empty": {}, "no mask": {IP: net.IPv4(10, 0, 0, 1)}, "short": {IP: net.IP{10, 0}, Mask: net.CIDRMask(8, 32)},
		"mask of the other family": {IP: net.IPv4(10, 0, 0, 1), Mask: net.CIDRMask(64, 128)}, "mask with a hole": {IP: net.IPv4(10, 0, 0, 1), Mask: net.IPMask{255, 0, 255, 0}},
	} {
		if got := Prefix(n); got.IsValid() {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestBaseAddrs(t *testing.T) {
	got := BaseAddrs(prefixes("10.5.1.9/24", "10.5.2.0/30", "fd00:0:0:1::9/64"))
	if want := prefixes("10.5.1.0/32", "10.5.2.0/32", "fd00:0:0:1::/128"); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestInside(t *testing.T) {
	networks := prefixes("10.5.0.0/16", "fd00::/48")
	for s, want := range map[string]bool{
		"10.5.0.0/16": true, "10.5.255.0/24": true, "10.5.0.0/15": false, "10.4.0.0/15": false, "10.6.0.0/24": false,
		"0.0.0.0/0": false, "fd00::/48": true, "fd00:0:0:1::/64": true, "fd00:0:1::/64": false, "::/0": false,
	} {
		if got := Inside(netip.MustParsePrefix(s), networks); got != want {
			t.Errorf("%s: %v", s, got)
		}
	}
	if Inside(netip.Prefix{}, networks) || Inside(networks[0], nil) {
		t.Error("no prefix is inside, or something is inside nothing")
	}
}

// addrMessage is an RTM_NEWADDR about link 7.
func addrMessage(prefix string, attrs ...*nl.RtAttr) []byte {
	p := netip.MustParsePrefix(prefix)
	m := nl.NewIfAddrmsg(nl.FAMILY_V4)
	m.Index, m.Prefixlen = 7, uint8(p.Bits())
	b := m.Serialize()
	for _, a := range append([]*nl.RtAttr{nl.NewRtAttr(unix.IFA_ADDRESS, p.Addr().AsSlice())}, attrs...) {
		b = append(b, a.Serialize()...)
	}
	return b
}

func TestParseAddr(t *testing.T) {
	ours := nl.NewRtAttr(ifaProto, []byte{RouteProtocol})
	good := addrMessage("10.5.1.0/32", ours)
	for name, c := range map[string]struct {
		message []byte
		index   int
		want    bool
	}{
		"marked":             {good, 7, true},
		"on another link":    {good, 8, false},
		"not marked":         {addrMessage("10.5.1.0/32"), 7, false},
		"the kernel's mark":  {addrMessage("10.5.1.0/32", nl.NewRtAttr(ifaProto, []byte{1})), 7, false},
		"a mark of 4 bytes":  {addrMessage("10.5.1.0/32", nl.NewRtAttr(ifaProto, []byte{RouteProtocol, 0, 0, 0})), 7, false},
		"a bad address":      {append(nl.NewIfAddrmsg(nl.FAMILY_V4).Serialize(), slices.Concat(nl.NewRtAttr(unix.IFA_ADDRESS, []byte{1, 2}).Serialize(), ours.Serialize())...), 0, false},
		"empty":              {nil, 7, false},
		"cut":                {good[:4], 7, false},
		"not padded":         {good[:len(good)-3], 7, false},
		"attribute too long": {append(slices.Clone(good), 200, 0, 1, 0), 7, false},
	} {
		p, marked := parseAddr(c.message, c.index)
		if marked != c.want || marked && p != netip.MustParsePrefix("10.5.1.0/32") {
			t.Errorf("%s: %s, %v", name, p, marked)
		}
	}
}

// TestAddAddrsRemovesNothing, while SetAddrs of the same does, and both count what they change.
func TestAddAddrsRemovesNothing(t *testing.T) {
	t.Parallel()
	ns, c, index := device(t, "flannel.7")
	list := func() []string {
		return strings.Fields(ns.Run("sh", "-c", "ip -o addr show dev flannel.7 | awk '{print $4}'"))
	}
	for _, step := range []struct {
		what    string
		do      func() error
		want    []string
		changes uint64
	}{
		{"first", func() error { return c.AddAddrs(index, prefixes("10.5.1.0/24"), prefixes("10.5.1.1/24")...) }, []string{"10.5.1.0/32", "10.5.1.1/24"}, 2},
		{"the same", func() error { return c.AddAddrs(index, prefixes("10.5.1.0/24")) }, []string{"10.5.1.0/32", "10.5.1.1/24"}, 0},
		{"another", func() error { return c.AddAddrs(index, prefixes("10.5.2.0/24")) }, []string{"10.5.1.0/32", "10.5.1.1/24", "10.5.2.0/32"}, 1},
		{"exactly one", func() error { return c.SetAddrs(index, prefixes("10.5.2.0/24"), prefixes("10.5.0.0/16")) }, []string{"10.5.2.0/32"}, 2},
		{"none", func() error { return c.SetAddrs(index, nil, prefixes("10.5.0.0/16")) }, nil, 1},
	} {
		before := c.Changes()
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		got := list()
		slices.Sort(got)
		if !slices.Equal(got, step.want) || c.Changes()-before != step.changes {
			t.Errorf("%s: addresses %v after %d changes, want %v after %d", step.what, got, c.Changes()-before, step.want, step.changes)
		}
	}
}

// TestRefusedAddress: an address that the kernel refuses keeps no other one on the link or from it, and is no change.
func TestRefusedAddress(t *testing.T) {
	t.Parallel()
	ns, c, index := device(t, "flannel.7")
	if err := errors.Join(c.SetLink(index, 1200, "", true), c.SetAddrs(index, prefixes("10.5.1.0/24"), prefixes("10.5.0.0/16"))); err != nil { // no IPv6 below 1280
		t.Fatal(err)
	}
	for _, changes := range []uint64{3, 0} {
		before := c.Changes()
		err := c.SetAddrs(index, prefixes("fd05:0:0:1::/64", "10.5.2.0/24"), prefixes("10.5.0.0/16", "fd05::/48"), prefixes("10.5.2.1/32")...)
		got := strings.Fields(ns.Run("sh", "-c", "ip -o addr show dev flannel.7 | awk '{print $4}'"))
		if err == nil || !strings.Contains(err.Error(), "add address fd05:0:0:1::/128 to flannel.7") || !slices.Equal(got, []string{"10.5.2.0/32", "10.5.2.1/32"}) || c.Changes()-before != changes {
			t.Errorf("%v, addresses %v after %d changes, want %d", err, got, c.Changes()-before, changes)
		}
	}
}

// TestErrorsOfAMissingLink: each step says what it looked for, and a caller can tell the reason.
func TestErrorsOfAMissingLink(t *testing.T) {
	t.Parallel()
	_, c, index := device(t, "flannel.7")
	gone := index + 1000
	for name, err := range map[string]error{
		"set link":      c.SetLink(gone, 1400, Alias, true),
		"set addresses": c.SetAddrs(gone, prefixes("10.5.1.0/24"), nil),
		"by name":       func() error { _, err := c.Link("none0"); return err }(),
		"by index":      func() error { _, err := c.LinkByIndex(gone); return err }(),
	} {
		if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "find link ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.SetRoutes(gone, whole("10.5.0.0/16")); !errors.Is(err, unix.ENODEV) || !strings.Contains(err.Error(), "10.5.0.0/16") {
		t.Errorf("route to a missing link: %v", err)
	}
	if err := c.SetRoutes(index, whole("10.5.0.0/16")); !errors.Is(err, unix.ENETDOWN) {
		t.Errorf("route to a link that is down: %v", err)
	}
}

// TestSetLinkDoesAllThatItCan: a refused MTU keeps the link from nothing else.
func TestSetLinkDoesAllThatItCan(t *testing.T) {
	t.Parallel()
	_, c, index := device(t, "flannel.7")
	err := c.SetLink(index, 1, Alias, true)
	if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "set MTU of flannel.7 to 1") {
		t.Errorf("got %v", err)
	}
	l, err := c.LinkByIndex(index)
	if err != nil {
		t.Fatal(err)
	}
	if a := l.Attrs(); a.Alias != Alias || a.Flags&net.FlagUp == 0 {
		t.Errorf("link has alias %q and flags %v", a.Alias, a.Flags)
	}
}

func TestSysctlErrorText(t *testing.T) {
	err := &SysctlError{Name: "net.ipv4.ip_forward", Value: "1", Err: fs.ErrPermission}
	if got := err.Error(); got != "set sysctl net.ipv4.ip_forward=1: permission denied" || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("got %q", got)
	}
}
