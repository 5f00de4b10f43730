package control

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// TestStandInsAreRead: what older versions of overlayd, and others, wrote for a dual-stack node
// of one underlay family reads as the same lease. A VTEP that is not a stand-in stays.
func TestStandInsAreRead(t *testing.T) {
	const key = "10.6.10.0-24&fd10:6:0:8::-64"
	data := func(last string) string { return `{"VNI":7,"VtepMAC":"8e:42:bf:15:f2:` + last + `"}` }
	one := VTEPData{VNI: 7, MAC: mac("8e:42:bf:15:f2:01")}
	v4 := Lease{PublicIP: addr("10.99.0.14"), Backend: one}
	v6 := Lease{PublicIPv6: addr("fd99::14"), BackendV6: one}
	stand4 := standIn4(addr("fd99::14")).String()
	for _, tt := range []struct {
		name, value string
		want        Lease
	}{
		{"IPv4 as before", `"PublicIP":"10.99.0.14","PublicIPv6":null,"BackendData":` + data("01"), v4},
		{"IPv6 as before", `"PublicIP":"0.0.0.0","PublicIPv6":"fd99::14","BackendV6Data":` + data("01"), v6},
		{"IPv4", `"PublicIP":"10.99.0.14","PublicIPv6":"100::a63:e","BackendData":` + data("01") + `,"BackendV6Data":` + data("01"), v4},
		{"any of the discard prefix", `"PublicIP":"10.99.0.14","PublicIPv6":"100::1:2:3:4","BackendData":` + data("01") + `,"BackendV6Data":` + data("02"), v4},
		{"IPv6", `"PublicIP":"` + stand4 + `","PublicIPv6":"fd99::14","BackendData":` + data("02") + `,"BackendV6Data":` + data("01"), v6},
		{"another of 240.0.0.0/5", `"PublicIP":"240.0.0.1","PublicIPv6":"fd99::14","BackendData":` + data("01") + `,"BackendV6Data":` + data("01"),
			Lease{PublicIP: addr("240.0.0.1"), PublicIPv6: addr("fd99::14"), Backend: one, BackendV6: one}},
		{"beside the discard prefix", `"PublicIP":"10.99.0.14","PublicIPv6":"100:0:0:1::1","BackendData":` + data("01") + `,"BackendV6Data":` + data("01"),
			Lease{PublicIP: addr("10.99.0.14"), PublicIPv6: addr("100:0:0:1::1"), Backend: one, BackendV6: one}},
	} {
		tt.want.BackendType, tt.want.Subnet, tt.want.IPv6Subnet = "vxlan", prefix("10.6.10.0/24"), prefix("fd10:6:0:8::/64")
		got, err := ParseLease(key, []byte(`{"BackendType":"vxlan",`+tt.value+`}`))
		if err != nil || got != tt.want {
			t.Errorf("%s: %+v, %v, want %+v", tt.name, got, err, tt.want)
		}
	}
	if l, err := ParseLease(key, []byte(`{"PublicIP":"0.0.0.0","PublicIPv6":"100::1","BackendType":"vxlan","BackendV6Data":`+data("01")+`}`)); err == nil {
		t.Errorf("a stand-in alone reads as %+v", l)
	}
}

// TestStandInsOnlyForTwoFamilies: who needs none has none.
func TestStandInsOnlyForTwoFamilies(t *testing.T) {
	v4 := Lease{Subnet: prefix("10.6.10.0/24"), PublicIP: addr("10.99.0.14"), BackendType: "vxlan", Backend: VTEPData{VNI: 7, MAC: encap.MAC{2, 1}}}
	both := with(v4, func(l *Lease) { l.IPv6Subnet = prefix("fd10:6:0:8::/64") })
	for name, l := range map[string]Lease{
		"one family":       v4,
		"IPv6 over IPv4":   with(both, func(l *Lease) { l.Subnet = netip.Prefix{} }),
		"reservation":      both.Reservation(),
		"another backend":  with(both, func(l *Lease) { l.BackendType = "host-gw" }),
		"two VTEPs":        with(both, func(l *Lease) { l.PublicIPv6, l.BackendV6 = addr("fd99::14"), l.Backend }),
		"address, no data": with(both, func(l *Lease) { l.PublicIPv6 = addr("fd99::14") }),
		"no VTEP":          with(both, func(l *Lease) { l.PublicIP = netip.Addr{} }),
	} {
		if got := l.WithStandIns(); got != l {
			t.Errorf("%s: %+v, want %+v", name, got, l)
		}
	}
	if got := both.WithStandIns(); got == both || got.WithoutStandIns() != both {
		t.Errorf("with a stand-in %+v", got)
	}
}

// TestStandInsDiffer: those for IPv6 are unique, those for IPv4 almost, and their MACs always.
func TestStandInsDiffer(t *testing.T) {
	seen := map[string]bool{}
	twice := 0
	for i := range 5000 {
		v4, v6 := netip.AddrFrom4([4]byte{10, 99, byte(i >> 8), byte(i)}), netip.AddrFrom16([16]byte{0xfd, 0x99, 14: byte(i >> 8), 15: byte(i)})
		for _, key := range []string{standIn6(v4).String(), fmt.Sprint(dataplane.MAC(v6, 1))} {
			if seen[key] {
				t.Errorf("%s twice", key)
			}
			seen[key] = true
		}
		stand4 := standIn4(v6)
		if seen[stand4.String()] {
			twice++
		}
		if seen[stand4.String()] = true; !standIns4.Contains(stand4) {
			t.Errorf("stand-in %s of %s", stand4, v6)
		}
	}
	if twice > 3 {
		t.Errorf("%d of 5000 IPv4 stand-ins are another node's", twice)
	}
}
