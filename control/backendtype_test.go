package control

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/overlayd/overlayd/dataplane"
)

// dualConfig is a dual-stack network of a backend type.
func dualConfig(t *testing.T, backend string) Network {
	t.Helper()
	n, err := ParseNetwork([]byte(fmt.Sprintf(`{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:6::/48","Backend":{"Type":%q,"VNI":"x"}}`, backend)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestPlainBackendsPublish: host-gw and alloc publish what flannel does, to the byte, whatever VTEPs there are.
func TestPlainBackendsPublish(t *testing.T) {
	both := Node{PublicIP: addr("192.0.2.1"), PublicIPv6: addr("2001:db8::1")}
	for _, tt := range []struct {
		backend string
		node    Node
		want    string // empty: an error
	}{
		{"host-gw", both, `{"PublicIP":"192.0.2.1","PublicIPv6":"2001:db8::1","BackendType":"host-gw"}`},
		{"Host-GW", both, `{"PublicIP":"192.0.2.1","PublicIPv6":"2001:db8::1","BackendType":"host-gw"}`},
		{"host-gw", Node{PublicIP: both.PublicIP}, ""}, // no next hop to the IPv6 subnet
		{"host-gw", Node{PublicIPv6: both.PublicIPv6}, ""},
		{"alloc", both, `{"PublicIP":"192.0.2.1","PublicIPv6":null}`},
		{"alloc", Node{PublicIPv6: both.PublicIPv6}, `{"PublicIP":"0.0.0.0","PublicIPv6":"2001:db8::1"}`},
		{"alloc", Node{}, ""},
	} {
		l, err := dualConfig(t, tt.backend).Publish(tt.node, nil)
		if (err == nil) != (tt.want != "") || err == nil && string(l.Value()) != tt.want {
			t.Errorf("%s of %v: %s, %v, want %s", tt.backend, tt.node, l.Value(), err, tt.want)
		}
	}
}

// TestPlainBackendsHaveNumbers: what a host keeps of a network without VNI has a number of no device, the same
// for the same addresses.
func TestPlainBackendsHaveNumbers(t *testing.T) {
	a, b := dualConfig(t, "host-gw").Backend.VNI, dualConfig(t, "alloc").Backend.VNI
	other, err := ParseNetwork([]byte(`{"Network":"10.4.0.0/16","Backend":{"Type":"host-gw"}}`))
	if err != nil || a != b || other.Backend.VNI == a || a <= dataplane.MaxDeviceVNI || a >= 1<<24 {
		t.Errorf("numbers %d, %d, %d, %v", a, b, other.Backend.VNI, err)
	}
}

// TestPeersOfHostGW: IPv4 addresses lead to IPv4 subnets, and IPv6 addresses to IPv6 ones. MACs do not matter.
func TestPeersOfHostGW(t *testing.T) {
	n := dualConfig(t, "host-gw")
	gateway := func(subnets string, public, public6 string, age int64) Lease {
		l := Lease{BackendType: BackendHostGW, CreateRevision: age}
		for s := range strings.SplitSeq(subnets, ",") {
			if p := prefix(s); p.Addr().Is4() {
				l.Subnet = p
			} else {
				l.IPv6Subnet = p
			}
		}
		if public != "" {
			l.PublicIP = addr(public)
		}
		if public6 != "" {
			l.PublicIPv6 = addr(public6)
		}
		return l
	}
	self := gateway("10.3.1.0/24,fd10:6:0:1::/64", "192.0.2.1", "2001:db8::1", 1)
	r := NewRIB(n)
	r.Apply(Update{Reset: true, Leases: []Lease{self,
		gateway("10.3.2.0/24,fd10:6:0:2::/64", "192.0.2.2", "2001:db8::2", 2),
		gateway("10.3.3.0/24,fd10:6:0:3::/64", "192.0.2.3", "", 3),
		gateway("10.3.4.0/24,fd10:6:0:4::/64", "192.0.2.1", "2001:db8::4", 4),
		with(gateway("10.3.5.0/24", "192.0.2.5", "", 5), func(l *Lease) { l.BackendType = BackendVXLAN; l.Backend = VTEPData{1, nodeMAC(5)} }),
		gateway("10.3.2.0/25", "192.0.2.6", "", 6),
	}})
	peers, rejected := r.Peers(self)
	got := ""
	for _, p := range peers {
		got += fmt.Sprintf("%s %v\n", p.VTEP.Addr, p.Subnets)
	}
	for _, x := range rejected {
		got += fmt.Sprintf("%s %s\n", x.Subnet, Reason(x.Err))
	}
	want := `192.0.2.2 [10.3.2.0/24]
192.0.2.3 [10.3.3.0/24]
2001:db8::2 [fd10:6:0:2::/64]
2001:db8::4 [fd10:6:0:4::/64]
10.3.2.0/25 overlaps_older
fd10:6:0:3::/64 no_common_family
10.3.4.0/24 own_public_ip
10.3.5.0/24 backend_type
`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestPeersOfAlloc: nothing leads to others, and only a lease of another backend is a fault.
func TestPeersOfAlloc(t *testing.T) {
	n := dualConfig(t, "alloc")
	r := NewRIB(n)
	plain := Lease{Subnet: prefix("10.3.2.0/24"), PublicIP: addr("192.0.2.2"), CreateRevision: 2}
	vxlan := lease("10.3.3.0/24", 3, 3)
	r.Apply(Update{Reset: true, Leases: []Lease{plain, vxlan}})
	peers, rejected := r.Peers(Lease{Subnet: prefix("10.3.1.0/24"), PublicIP: addr("192.0.2.1")})
	if len(peers) != 0 || len(rejected) != 1 || rejected[0].Subnet != vxlan.Subnet {
		t.Errorf("peers %v, rejected %v", peers, rejected)
	}
	value := func(l Lease) []byte { return l.Value() }
	if held := AppendHeld(nil, n, plain.Key(), value(plain)); len(held) != 1 {
		t.Errorf("a lease of alloc holds %v", held)
	}
	if held := AppendHeld(nil, n, vxlan.Key(), value(vxlan)); len(held) != 0 {
		t.Errorf("a lease of another backend holds %v", held)
	}
}
