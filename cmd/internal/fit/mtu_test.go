package fit

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// TestOverlayMTU: one MTU for all overlay devices, right for the encapsulation that takes most.
func TestOverlayMTU(t *testing.T) {
	v4 := underlay.End{Local: netip.MustParseAddr("192.0.2.1")}
	v6 := underlay.End{Local: netip.MustParseAddr("2001:db8::1")}
	for _, c := range []struct {
		name       string
		ipv4, ipv6 bool
		configured int
		iface      underlay.Interface
		want       int
		refused    string
	}{
		{"IPv4", true, false, 0, underlay.Interface{MTU: 1500, IPv4: v4, IPv6: v6}, 1450, ""},
		{"IPv6", false, true, 0, underlay.Interface{MTU: 1500, IPv4: v4, IPv6: v6}, 1430, ""},
		{"dual-stack", true, true, 0, underlay.Interface{MTU: 1500, IPv4: v4, IPv6: v6}, 1430, ""},
		{"dual-stack over IPv4", true, true, 0, underlay.Interface{MTU: 1500, IPv4: v4}, 1450, ""},
		{"IPv4 over IPv6", true, false, 0, underlay.Interface{MTU: 1500, IPv6: v6}, 1430, ""},
		{"configured", true, false, 1400, underlay.Interface{MTU: 1500, IPv4: v4}, 1350, ""},
		{"configured larger", true, false, 9000, underlay.Interface{MTU: 1500, IPv4: v4}, 1450, ""},
		{"loopback", true, false, 0, underlay.Interface{MTU: 65536, IPv4: v4}, 65485, ""},
		{"loopback over IPv6", true, true, 0, underlay.Interface{MTU: 65536, IPv4: v4, IPv6: v6}, 65465, ""},
		{"configured above all", true, false, 70000, underlay.Interface{MTU: 65536, IPv4: v4}, 65485, ""},
		{"too small for IPv6", true, true, 1340, underlay.Interface{MTU: 1500, IPv4: v4, IPv6: v6}, 1270, "IPv6 needs 1280"},
		{"enough for IPv6", true, true, 1350, underlay.Interface{MTU: 1500, IPv4: v4, IPv6: v6}, 1280, ""},
		{"too small for IPv4", true, false, 0, underlay.Interface{Name: "eth9", MTU: 100, IPv4: v4}, 50, "MTU of eth9 is 100"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := control.Network{EnableIPv4: c.ipv4, EnableIPv6: c.ipv6, Backend: control.Backend{MTU: c.configured}}
			if got := MTU(n, c.iface); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
			err := CheckMTU(n, c.iface)
			if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Errorf("got %v, want %q", err, c.refused)
			}
		})
	}
}
