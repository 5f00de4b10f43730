package nft_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/nft"
)

// TestForward makes a table that forwards, and has the nft command say what it is.
func TestForward(t *testing.T) {
	t.Parallel()
	for family, c := range map[nft.Family]struct{ to, gateway, rule string }{
		nft.IPv4: {"192.0.2.1", "198.51.100.7", "fwd ip to"},
		nft.IPv6: {"2001:db8::1", "fe80::7", "fwd ip6 to"},
	} {
		n := netnstest.New(t)
		var held *nft.Held
		hops := nft.Hops{Table: "hops", Family: family}
		to, hop := netip.MustParseAddr(c.to), nft.Hop{Gateway: netip.MustParseAddr(c.gateway)}
		n.Must(func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			hop.Link = lo.Attrs().Index
			rule, err := nft.Forward(hops, 0x40)
			if err != nil {
				return err
			}
			steps := append([]nft.Step{nft.NewOwnedTable(nft.Netdev, hops.Table)}, nft.NewHops(hops)...)
			held, err = nft.Hold(append(steps,
				nft.NewChain(nft.Netdev, hops.Table, "out", &nft.Hook{Type: "filter", Number: unix.NF_NETDEV_INGRESS, Drop: true, Device: "lo"}),
				nft.NewRule(nft.Netdev, hops.Table, "out", rule, "to the next hop"))...)
			return err
		})
		defer held.Close()
		list := func() string { return n.Run("nft", "-n", "list", "ruleset") }
		has := func(when string, want ...string) {
			t.Helper()
			for _, w := range want {
				if got := list(); !strings.Contains(got, w) {
					t.Errorf("%s %s: no %q in\n%s", family, when, w, got)
				}
			}
		}
		has("empty", `hook ingress device "lo" priority 0; policy drop;`, "meta mark set 0x00000040", c.rule, "iface_index")
		if err := held.Commit(nft.AddHop(hops, to, hop)); err != nil {
			t.Fatal(err)
		}
		has("with a hop", c.to+" : "+c.gateway, c.to+" : 1")
		if err := held.Commit(append(nft.DeleteHop(hops, to), nft.AddHop(hops, to, nft.Hop{Link: hop.Link, Gateway: to})...)); err != nil {
			t.Fatal(err)
		}
		has("with another hop", c.to+" : "+c.to)
		if err := held.Commit(nft.DeleteHop(hops, to)); err != nil {
			t.Fatal(err)
		}
		if got := list(); strings.Contains(got, c.to) {
			t.Errorf("%s: the hop is left:\n%s", family, got)
		}
		if err := held.Commit(nft.DeleteHop(hops, to)); err == nil {
			t.Error("a hop that is not there was deleted")
		}
	}
}
