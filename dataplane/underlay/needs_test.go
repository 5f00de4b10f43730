package underlay

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestReadNeeds: gateways are those of the default routes by any interface, and on-link is what the
// underlay's interface reaches without one. Overlay routes are not looked at, nor at the way by which they lead.
func TestReadNeeds(t *testing.T) {
	ns, other := netnstest.New(t), netnstest.New(t)
	netnstest.Link(ns, "eth0", other, "eth0")
	netnstest.Link(ns, "eth1", other, "eth1")
	ns.Addr("eth0", "10.99.0.2/24")
	ns.Addr("eth0", "2001:db8::2/64")
	ns.Addr("eth1", "192.0.2.2/24")
	for _, route := range []string{
		"-4 route add default via 10.99.0.1", "-4 route add default via 192.0.2.1 metric 9", "-6 route add default via 2001:db8::1",
		"-4 route add 10.98.0.0/24 dev eth0 scope link", "-4 route add 10.97.0.0/24 via 10.99.0.9", "-4 route add 10.96.0.0/24 dev eth0 proto 211",
		"-4 route add blackhole 10.95.0.0/24", "-4 route add 10.94.0.0/24 dev eth0 table 77",
		"-4 route add default metric 7 nexthop via 10.99.0.7 dev eth0 nexthop via 192.0.2.7 dev eth1",
	} {
		ns.Run("ip", strings.Fields(route)...)
	}
	for _, link := range []string{"br0", "ptp0"} {
		ns.Run("ip", "link", "add", link, "type", "bridge")
		ns.Run("ip", "link", "set", link, "up")
	}
	ns.Addr("br0", "10.5.50.1/24")
	ns.Addr("ptp0", "10.5.51.1/32")
	ns.Run("ip", strings.Fields("-4 route add 10.98.7.0/24 via 10.99.0.8")...)
	ns.Run("ip", strings.Fields("-4 route add 10.98.7.7/32 dev eth1 proto 211")...)
	var got Needs
	ns.Must(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		got, err = ReadNeeds(Interface{Index: l.Attrs().Index}, 211, netip.MustParseAddr("10.98.7.7"), netip.MustParseAddr("10.5.50.9"),
			netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr("2001:db8::7"), netip.MustParseAddr("2001:db9::7"))
		return err
	})
	want := "[10.99.0.1 10.99.0.7 192.0.2.7 192.0.2.1 2001:db8::1] [10.98.0.0/24 10.99.0.0/24 2001:db8::/64]"
	if text := fmt.Sprint(got.Gateways, got.OnLink); text != want {
		t.Errorf("got %s, want %s", text, want)
	}
	// Beside the underlay's own link there is that of a bridge; one to a single host has no other hosts.
	want = "[{192.0.2.0/24 eth1} {10.5.50.0/24 br0}] [10.5.50.1 10.5.51.1 10.99.0.2 192.0.2.2 2001:db8::2] " +
		"[{10.98.7.0/24 [10.99.0.8]} {10.5.50.0/24 []} {0.0.0.0/0 [10.99.0.1 10.99.0.7 192.0.2.7 192.0.2.1]} {2001:db8::/64 []} {::/0 [2001:db8::1]}]"
	slices.SortFunc(got.Links, func(a, b Link) int { return b.Prefix.Addr().Compare(a.Prefix.Addr()) })
	if text := fmt.Sprint(got.Links, got.Locals, got.Ways); text != want {
		t.Errorf("got %s,\nwant %s", text, want)
	}
}
