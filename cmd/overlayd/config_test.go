package main

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
		{"too small for IPv6", true, true, 1340, underlay.Interface{MTU: 1500, IPv4: v4, IPv6: v6}, 1270, "IPv6 needs 1280"},
		{"enough for IPv6", true, true, 1350, underlay.Interface{MTU: 1500, IPv4: v4, IPv6: v6}, 1280, ""},
		{"too small for IPv4", true, false, 0, underlay.Interface{Name: "eth9", MTU: 100, IPv4: v4}, 50, "MTU of eth9 is 100"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := control.Network{EnableIPv4: c.ipv4, EnableIPv6: c.ipv6, Backend: control.Backend{MTU: c.configured}}
			if got := overlayMTU(n, c.iface); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
			err := checkMTU(n, c.iface)
			if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Errorf("got %v, want %q", err, c.refused)
			}
		})
	}
}

// TestChanged: which changes take another session.
func TestChanged(t *testing.T) {
	config := control.Network{EnableIPv4: true, Backend: control.Backend{VNI: 1, Port: 8472}}
	v4 := underlay.End{Local: netip.MustParseAddr("192.0.2.1")}
	v6 := underlay.End{Local: netip.MustParseAddr("2001:db8::1")}
	iface := underlay.Interface{Name: "eth0", Index: 2, MTU: 1500, IPv4: v4}
	for _, c := range []struct {
		name   string
		change func(*control.Network, *underlay.Interface)
		says   string // empty: none
	}{
		{"nothing", func(*control.Network, *underlay.Interface) {}, ""},
		{"MTU of the interface", func(_ *control.Network, i *underlay.Interface) { i.MTU = 1400 }, ""},
		{"configured MTU", func(c *control.Network, _ *underlay.Interface) { c.Backend.MTU = 1400 }, ""},
		{"port", func(c *control.Network, _ *underlay.Interface) { c.Backend.Port = 4789 }, "network config has changed"},
		{"mode of the rules", func(c *control.Network, _ *underlay.Interface) { c.EnableNFTables = true }, "network config has changed"},
		{"address", func(_ *control.Network, i *underlay.Interface) { i.IPv4 = v6 }, "underlay has changed"},
		{"address of the other family", func(_ *control.Network, i *underlay.Interface) { i.IPv6 = v6 }, ""},
		{"only the other family", func(_ *control.Network, i *underlay.Interface) { i.IPv4, i.IPv6 = underlay.End{}, v6 }, "underlay has changed"},
		{"interface of the same name", func(_ *control.Network, i *underlay.Interface) { i.Index = 7 }, "underlay has changed"},
	} {
		nextConfig, nextIface := config, iface
		c.change(&nextConfig, &nextIface)
		err := changed(config, nextConfig, iface.Underlays(true, false), nextIface.Underlays(true, false))
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.says)
		}
	}
}
