package leftovers

import (
	"strings"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/nodefile"
)

// TestRoutesOfTheNextSession: of a network that has become larger or smaller the routes stay that the next session may use.
func TestRoutesOfTheNextSession(t *testing.T) {
	for name, c := range map[string]struct{ was, next, kept, gone string }{
		"larger":  {"10.5.0.0/17", "10.5.0.0/16", "10.5.7.0/24", ""},
		"smaller": {"10.4.0.0/15", "10.5.0.0/16", "10.5.7.0/24", "10.4.7.0/24"},
		"around":  {"10.0.0.0/8", "10.5.0.0/20", "10.5.7.0/24", "10.5.0.0/16"},
		"another": {"10.4.0.0/16", "10.5.0.0/16", "10.5.7.0/24", "10.4.7.0/24"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := overlayHost(t)
			for _, dst := range []string{c.kept, c.gone} {
				if dst != "" {
					ns.Run("ip", "route", "add", dst, "via", "192.0.2.3", "dev", "eth0", "proto", "211")
					ns.Run("ip", "route", "add", "unreachable", dst, "proto", "211", "metric", "4294967294")
				}
			}
			l, now := nodefile.Left{Networks: prefixes(c.was)}, nodefile.Left{Networks: prefixes(c.next)}
			ns.Must(func() error { _, _, err := Remove(t.Context(), l.Without(now), now.Networks...); return err })
			if routes := ns.Run("ip", "route"); strings.Count(routes, c.kept) != 2 || c.gone != "" && strings.Contains(routes, c.gone+" via") {
				t.Errorf("%s should stay and %q go:\n%s", c.kept, c.gone, routes)
			}
		})
	}
}
