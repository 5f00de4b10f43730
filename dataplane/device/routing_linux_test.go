package device

import (
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

func TestReasonsAgainstOneRoute(t *testing.T) {
	network, network6 := netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd42::/48")
	other := []rtnl.OtherRoute{{Dst: network, Link: 3, Text: "10.42.0.0/16 dev docker0 proto kernel"}}
	for _, c := range []struct {
		name, underlay string
		others         []rtnl.OtherRoute
		want4, want6   string
	}{
		{"nothing", "", nil, "", ""},
		{"an address", "10.42.7.7/32", nil, "it holds 10.42.7.7 of the underlay", ""},
		{"an on-link prefix", "fd42:0:0:9::/64", nil, "", "it holds fd42:0:0:9::/64 of the underlay"},
		{"a route of others", "", other, "somebody else has a route to it: 10.42.0.0/16 dev docker0 proto kernel", ""},
		{"both", "10.42.7.7/32", other, "somebody else has a route to it: 10.42.0.0/16 dev docker0 proto kernel", ""},
	} {
		w := dataplane.Wanted{Networks: []netip.Prefix{network, network6}}
		if c.underlay != "" {
			w.Underlay = []netip.Prefix{netip.MustParsePrefix(c.underlay)}
		}
		got := reasonsAgainst(w, c.others)
		if got[network] != c.want4 || got[network6] != c.want6 {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
