package dataplane

import (
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/encap"
)

// TestMACs: the first MAC is the one of every overlayd so far, and all differ by address, VNI and number.
func TestMACs(t *testing.T) {
	a, b := netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("192.168.0.2")
	if got := MAC(a, 1).String(); got != "06:73:41:f7:93:82" || NthMAC(a, 1, 0) != MAC(a, 1) {
		t.Errorf("the first MAC is %s", got)
	}
	seen := map[encap.MAC]bool{}
	for _, addr := range []netip.Addr{a, b} {
		for _, vni := range []uint32{1, 2} {
			for n := range MACs {
				m := NthMAC(addr, vni, n)
				if seen[m] || !m.IsUnicast() || m[0]&2 == 0 {
					t.Errorf("MAC %d of %s in %d is %s", n, addr, vni, m)
				}
				seen[m] = true
				if !IsDerived(m, addr, vni) || IsDerived(m, addr, vni+7) || IsDerived(m, addr.Next().Next(), vni) {
					t.Errorf("MAC %s: derived from the wrong address or VNI, or from none", m)
				}
			}
		}
	}
	if IsDerived(encap.MAC{2, 1}, a, 1) || IsDerived(MAC(netip.Addr{}, 1), netip.Addr{}, 1) {
		t.Error("a MAC of another program is derived, or one of no address")
	}
}

func TestWantedMAC(t *testing.T) {
	v4, v6 := VTEP{Addr: netip.MustParseAddr("192.0.2.1"), MAC: encap.MAC{2, 4}}, VTEP{Addr: netip.MustParseAddr("2001:db8::1"), MAC: encap.MAC{2, 6}}
	for _, tt := range []struct {
		vteps  []VTEP
		v4, v6 encap.MAC
	}{
		{nil, encap.MAC{}, encap.MAC{}},
		{[]VTEP{v4}, v4.MAC, encap.MAC{}},
		{[]VTEP{v6, v4}, v4.MAC, v6.MAC},
		{[]VTEP{{Addr: v4.Addr}}, encap.MAC{}, encap.MAC{}},
	} {
		w := Wanted{VTEPs: tt.vteps}
		m4, ok4 := w.MAC(false)
		m6, ok6 := w.MAC(true)
		if m4 != tt.v4 || m6 != tt.v6 || ok4 != (tt.v4 != encap.MAC{}) || ok6 != (tt.v6 != encap.MAC{}) {
			t.Errorf("%v: %s %v, %s %v", tt.vteps, m4, ok4, m6, ok6)
		}
	}
}
