package encap

import "net/netip"

// The lengths of the outer headers, in bytes. The outer IPv4 header has no
// options, the outer IPv6 header no extension headers.
const (
	outerIPv4Len = 20
	outerIPv6Len = 40
	outerUDPLen  = 8
)

// The bytes that the encapsulation takes from the underlay's MTU:
//
//	                 IPv4  IPv6 underlay
//	outer IP           20    40   RFC 791, RFC 8200
//	outer UDP           8     8   RFC 768
//	VXLAN               8     8   RFC 7348
//	inner Ethernet     14    14   RFC 7348
//	                  ---   ---
//	                   50    70
const (
	overheadIPv4 = outerIPv4Len + outerUDPLen + HeaderLen
	overheadIPv6 = outerIPv6Len + outerUDPLen + HeaderLen
)

// Overhead returns by how many bytes the MTU of the overlay is smaller than that
// of an underlay that uses the given address: 50 over IPv4 and 70 over IPv6. An
// IPv4-mapped IPv6 address stands for IPv4, which is what goes over the wire.
func Overhead(underlay netip.Addr) int {
	if underlay.Unmap().Is4() {
		return overheadIPv4
	}
	return overheadIPv6
}
