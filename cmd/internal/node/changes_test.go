package node

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// TestChanged: which changes need another session.
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
