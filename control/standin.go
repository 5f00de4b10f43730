package control

import (
	"crypto/sha256"
	"net/netip"

	"github.com/overlayd/overlayd/dataplane"
)

// A node with an underlay of one family in a network of both has one VTEP. In the store a
// stand-in takes the place of the other one: an address that is nobody's, with the data of the
// VTEP that there is. flanneld (v0.28.4) does not use a dual-stack lease at all, in neither
// family, if the address or the data of one VTEP are missing or if it cannot program both.
// With a stand-in it uses the one family, and what it sends to the other goes nowhere.
//
// Only the text of a lease has stand-ins: whoever reads it drops them, and no Lease in
// this package or below it has one.

var (
	// discardPrefix has the stand-ins for IPv6: the last four bytes are the IPv4 address of the
	// lease. Routers discard what is sent there (RFC 6666).
	discardPrefix = netip.MustParsePrefix("100::/64")
	// standIns4 has those for IPv4: a part of what no host may have (RFC 1112 section 4), without
	// the broadcast address.
	standIns4 = netip.MustParsePrefix("240.0.0.0/5")
)

// standIn6 returns the stand-in for the IPv6 VTEP of the node with this IPv4 address.
func standIn6(public netip.Addr) netip.Addr {
	a, v4 := discardPrefix.Addr().As16(), public.As4()
	copy(a[12:], v4[:])
	return netip.AddrFrom16(a)
}

// standIn4 returns the stand-in for the IPv4 VTEP of the node with this IPv6 address: 27 bits of a
// hash of it. It is not 0.0.0.0: with DirectRouting flanneld finds a direct route to that, tries for
// 51 s to add it, does nothing else meanwhile and then leaves out IPv6 too. Two nodes may get
// the same one, which costs nobody anything: no two have the same MAC.
func standIn4(public netip.Addr) netip.Addr {
	v6 := public.As16()
	sum := sha256.Sum256(append([]byte("overlayd stand-in "), v6[:]...))
	return netip.AddrFrom4([4]byte{0xf0 | sum[0]&0x07, sum[1], sum[2], sum[3]})
}

// WithStandIns returns the lease as it stands in the store: with a stand-in if it has
// subnets of both families and a VTEP of one.
func (l Lease) WithStandIns() Lease {
	if l.BackendType != BackendVXLAN || !l.Subnet.IsValid() || !l.IPv6Subnet.IsValid() {
		return l
	}
	v4, v6 := l.VTEP(false).Addr.IsValid(), l.VTEP(true).Addr.IsValid()
	switch {
	case v4 && !v6 && !l.PublicIPv6.IsValid() && l.BackendV6 == (VTEPData{}):
		l.PublicIPv6, l.BackendV6 = standIn6(l.PublicIP), l.Backend
	case v6 && !v4 && !l.PublicIP.IsValid() && l.Backend == (VTEPData{}):
		l.PublicIP, l.Backend = standIn4(l.PublicIPv6), l.BackendV6
	}
	return l
}

// WithoutStandIns returns the lease without a VTEP that is a stand-in. Every IPv6 address of
// 100::/64 is one, whoever wrote it; of IPv4 only the one that belongs to the lease's IPv6 address.
func (l Lease) WithoutStandIns() Lease {
	if discardPrefix.Contains(l.PublicIPv6) {
		l.PublicIPv6, l.BackendV6 = netip.Addr{}, VTEPData{}
	}
	if standIns4.Contains(l.PublicIP) && l.VTEP(true) != (dataplane.VTEP{}) && l.PublicIP == standIn4(l.PublicIPv6) {
		l.PublicIP, l.Backend = netip.Addr{}, VTEPData{}
	}
	return l
}
