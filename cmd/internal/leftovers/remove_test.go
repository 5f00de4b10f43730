package leftovers

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/nodefile"
)

// TestRoutesOfTheNextSession: of a network that has become larger or smaller the routes stay that the next session may use.
func TestRoutesOfTheNextSession(t *testing.T) {
	for name, c := range map[string]struct{ was, next, kept, gone string }{
		"larger":  {"10.5.0.0/17", "10.5.0.0/16", "10.5.7.0/24", ""},
		"smaller": {"10.4.0.0/15", "10.5.0.0/16", "10.5.7.0/24", "10.4.7.0/24"},
		"another": {"10.4.0.0/16", "10.5.0.0/16", "10.5.7.0/24", "10.4.7.0/24"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := overlayHost(t)
			for _, dst := range []string{c.kept, c.gone} {
				if dst != "" {
					ns.Run("ip", "route", "add", dst, "via", "192.0.2.3", "dev", "eth0", "proto", "211")
				}
			}
			l, now := nodefile.Left{Networks: prefixes(c.was)}, nodefile.Left{Networks: prefixes(c.next)}
			ns.Must(func() error { _, _, err := Remove(t.Context(), l.Without(now), now.Networks...); return err })
			if routes := ns.Run("ip", "route"); !strings.Contains(routes, c.kept) || c.gone != "" && strings.Contains(routes, c.gone) {
				t.Errorf("%s should stay and %q go:\n%s", c.kept, c.gone, routes)
			}
		})
	}
}

// TestWithout: what is left of a prefix.
func TestWithout(t *testing.T) {
	for _, c := range []struct{ p, others, want string }{
		{"10.4.0.0/15", "10.5.0.0/16", "[10.4.0.0/16]"},
		{"10.5.0.0/16", "10.4.0.0/15", "[]"},
		{"10.5.0.0/16", "10.6.0.0/16", "[10.5.0.0/16]"},
		{"10.5.0.0/16", "10.5.64.0/18", "[10.5.0.0/18 10.5.128.0/17]"},
		{"fd00::/16", "fd00:8000::/17", "[fd00::/17]"},
		{"0.0.0.0/0", "255.255.255.255/32", ""},
	} {
		got := without(netip.MustParsePrefix(c.p), prefixes(c.others))
		if text := fmt.Sprint(got); c.want != "" && text != c.want || c.want == "" && len(got) != 32 {
			t.Errorf("%s without %s: %s, want %s", c.p, c.others, text, c.want)
		}
	}
}
