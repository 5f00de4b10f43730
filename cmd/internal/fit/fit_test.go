package fit

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// TestSupported: what this host cannot carry is refused by the name of its key, with the value.
func TestSupported(t *testing.T) {
	v4, v6 := underlay.End{Local: netip.MustParseAddr("192.0.2.1")}, underlay.End{Local: netip.MustParseAddr("2001:db8::1")}
	host4 := underlay.Interface{Name: "eth0", MTU: 1500, IPv4: v4}
	host6 := underlay.Interface{Name: "eth0", MTU: 1500, IPv6: v6}
	dual := underlay.Interface{Name: "eth0", MTU: 1500, IPv4: v4, IPv6: v6}
	narrow := underlay.Interface{Name: "eth0", MTU: 117, IPv4: v4}
	for _, c := range []struct {
		name    string
		mode    Mode
		iface   underlay.Interface
		config  string
		refused string // empty: it is carried
	}{
		{"plain", Kernel, host4, `{"Network":"10.5.0.0/16"}`, ""},
		{"GBP in the kernel", Kernel, host4, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","GBP":true}}`, ""},
		{"GBP if the kernel can", Auto, host4, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","GBP":true}}`, ""},
		{"GBP", Userspace, host4, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","GBP":true}}`, "Backend.GBP: "},
		{"Learning", Userspace, host4, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","Learning":true}}`, "Backend.Learning: "},
		{"largest VNI", Kernel, host4, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":9999999}}`, ""},
		{"VNI too long for a name", Kernel, host4, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":10000000}}`, "Backend.VNI: 10000000: want at most 9999999"},
		{"largest VNI over IPv6", Kernel, host6, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":9999}}`, ""},
		{"VNI too long over IPv6", Kernel, host6, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":10000}}`, "Backend.VNI: 10000: want at most 9999"},
		{"the same in userspace", Userspace, host6, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":10000}}`, ""},
		{"IPv4 of a dual-stack host", Kernel, dual, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":10000}}`, ""},
		{"dual-stack", Kernel, dual, `{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan","VNI":10000}}`, "Backend.VNI: 10000"},
		{"holds the host", Kernel, host4, `{"Network":"192.0.0.0/16"}`, ""},
		{"holds the host, in userspace", Userspace, host4, `{"Network":"192.0.0.0/16"}`, ""},
		{"smallest link", Kernel, narrow, `{"Network":"10.5.0.0/16"}`, "the overlay has an MTU of 67 here, and IPv4 needs 68"},
	} {
		config, err := control.ParseNetwork([]byte(c.config))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		err = Host{Mode: c.mode, Underlay: c.iface}.Carries(config)
		if (err == nil) != (c.refused == "") || err != nil && (!strings.Contains(err.Error(), c.refused) || !strings.HasPrefix(err.Error(), "network config: ")) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.refused)
		}
		if kernelOnly := strings.Contains(c.name, "GBP") || strings.Contains(c.name, "Learning"); errors.Is(err, ErrKernelOnly) != (kernelOnly && c.refused != "") {
			t.Errorf("%s: %v: is it for the kernel only?", c.name, err)
		}
	}
}

// TestAnywhere: which dataplanes can carry a network on some host, and what none can.
func TestAnywhere(t *testing.T) {
	for _, c := range []struct {
		name, config string
		modes        []Mode
		refused      string // empty: some host can carry it
	}{
		{"plain", `{"Network":"10.5.0.0/16"}`, []Mode{Kernel, Userspace}, ""},
		{"GBP", `{"Network":"10.5.0.0/16","Backend":{"GBP":true}}`, []Mode{Kernel}, ""},
		{"Learning", `{"Network":"10.5.0.0/16","Backend":{"Learning":true}}`, []Mode{Kernel}, ""},
		{"long VNI", `{"Network":"10.5.0.0/16","Backend":{"VNI":9999999}}`, []Mode{Kernel, Userspace}, ""},
		{"long VNI, IPv6 only", `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"VNI":10000}}`, []Mode{Kernel, Userspace}, ""},
		{"longest VNI", `{"Network":"10.5.0.0/16","Backend":{"VNI":16777215}}`, nil, "Backend.VNI: 16777215: want at most 9999999"},
		{"longest VNI in the kernel", `{"Network":"10.5.0.0/16","Backend":{"VNI":10000000,"GBP":true}}`, nil, "Backend.VNI: 10000000: want at most 9999999"},
		{"IPv6 in few bytes", `{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"MTU":1300}}`, nil, "IPv6 needs 1280"},
		{"IPv6 in just enough", `{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"MTU":1330}}`, []Mode{Kernel, Userspace}, ""},
		{"host-gw", `{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}`, nil, ""},
		{"alloc", `{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"alloc"}}`, nil, ""},
	} {
		config, err := control.ParseNetwork([]byte(c.config))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		modes, err := Anywhere(config)
		if !slices.Equal(modes, c.modes) || (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s: got %v, %v; want %v, %q", c.name, modes, err, c.modes, c.refused)
		}
	}
}
