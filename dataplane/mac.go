package dataplane

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"

	"github.com/overlayd/overlayd/encap"
)

// MACs is how many MACs a VTEP can derive from its address.
const MACs = 8

// MAC derives the address of a VTEP from its published underlay address and VNI:
// locally administered, unicast, and the same after every restart, so that
// nothing needs to be stored. The published address and not the local one,
// because behind NAT many hosts share a local address.
func MAC(addr netip.Addr, vni uint32) encap.MAC { return NthMAC(addr, vni, 0) }

// NthMAC is MAC for a VTEP that cannot have any of the n before, because somebody else has
// them. n is below MACs; the one with n 0 is MAC.
func NthMAC(addr netip.Addr, vni uint32, n int) encap.MAC {
	a := addr.As16()
	text := binary.BigEndian.AppendUint32(append([]byte("overlayd vtep "), a[:]...), vni)
	if n > 0 {
		text = append(text, byte(n))
	}
	sum := sha256.Sum256(text)
	m := encap.MAC(sum[:encap.MACLen])
	m[0] = m[0]&^0x01 | 0x02 // individual, locally administered (IEEE 802-2014 section 8.2.2)
	return m
}

// IsDerived reports whether m is one of the MACs that overlayd derives from addr and vni. Any
// other MAC came with the device or the lease of another program.
func IsDerived(m encap.MAC, addr netip.Addr, vni uint32) bool {
	for n := range MACs {
		if addr.IsValid() && m == NthMAC(addr, vni, n) {
			return true
		}
	}
	return false
}

// MAC returns the MAC that the own VTEP of one family is published with; ok is false if w does not say.
func (w *Wanted) MAC(ipv6 bool) (m encap.MAC, ok bool) {
	for _, v := range w.VTEPs {
		if v.Addr.Is6() == ipv6 && v.MAC.IsUnicast() {
			return v.MAC, true
		}
	}
	return encap.MAC{}, false
}
