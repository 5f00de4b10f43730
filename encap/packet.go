package encap

import (
	"encoding/binary"
	"net/netip"
)

// The numbers of the protocols that encap looks into (IANA protocol numbers).
const (
	ProtoTCP = 6
	ProtoUDP = 17
)

const (
	ipv4MinLen = 20
	ipv6Len    = 40
)

// IP is what ParseIP found in a packet. It holds no reference to the packet.
type IP struct {
	Src, Dst netip.Addr // never IPv4-mapped unless an IPv6 header says so
	Version  uint8      // 4 or 6
	// Proto is the protocol at HeaderLen. It is that of an IPv6 extension header
	// if the walk stopped before the end of them: at more than maxExtensions, or
	// at a routing header with hops to go.
	Proto     uint8
	HeaderLen int  // bytes up to the payload, IPv4 options and IPv6 extension headers included
	Len       int  // bytes of the packet by its own header; what follows is padding
	Fragment  bool // first, middle or last fragment
	First     bool // not a fragment, or the first one: the payload starts with its header
}

// ParseIP reads the IPv4 or IPv6 header at the start of b, IPv6 extension headers
// included, into ip. Afterwards ip.HeaderLen <= ip.Len <= len(b) holds. Any
// contradiction in version or lengths is ErrIP, a buffer shorter than the fixed
// header ErrShort; ip is then not to be used. The IPv4 header checksum is not
// looked at: the stack that receives the packet does that.
func ParseIP(b []byte, ip *IP) error {
	if len(b) < ipv4MinLen {
		return ErrShort
	}
	switch b[0] >> 4 {
	case 4:
		return parseIPv4(b, ip)
	case 6:
		return parseIPv6(b, ip)
	}
	return ErrIP
}

// parseIPv4 reads the header of RFC 791 section 3.1; len(b) >= ipv4MinLen:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|Version|  IHL  |Type of Service|          Total Length         |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|         Identification        |R|D|M|     Fragment Offset     |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|  Time to Live |    Protocol   |         Header Checksum       |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                       Source Address                          |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                    Destination Address                        |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
func parseIPv4(b []byte, ip *IP) error {
	hl, n := ipv4Lengths(b)
	if hl < ipv4MinLen || n < hl || n > len(b) {
		return ErrIP
	}
	ip.Version = 4
	ip.Proto = b[9]
	ip.Src = netip.AddrFrom4([4]byte(b[12:16]))
	ip.Dst = netip.AddrFrom4([4]byte(b[16:20]))
	ip.HeaderLen = hl
	ip.Len = n
	frag := binary.BigEndian.Uint16(b[6:8])
	ip.Fragment = frag&(ipv4MoreFragments|ipv4OffsetMask) != 0
	ip.First = frag&ipv4OffsetMask == 0
	return nil
}

const (
	ipv4MoreFragments = 0x2000
	ipv4OffsetMask    = 0x1fff
)

// ipv4Lengths returns the header length and the total length that the IPv4
// header of at least ipv4MinLen bytes claims.
func ipv4Lengths(b []byte) (header, total int) {
	return int(b[0]&0x0f) * 4, int(binary.BigEndian.Uint16(b[2:4]))
}

// Source returns the source of a packet that Destination has taken, whose EtherType it returned.
func Source(b []byte, etherType uint16) netip.Addr {
	if etherType == EtherTypeIPv4 {
		return netip.AddrFrom4([4]byte(b[12:16]))
	}
	return netip.AddrFrom16([16]byte(b[8:24]))
}

// Ends4 is Source and Destination of an IPv4 packet without options, as numbers and without a call: almost all packets
// are. Of any other packet ok is false, and Destination says more.
func Ends4(b []byte) (src, dst uint32, ok bool) {
	if len(b) < ipv4MinLen || b[0] != 4<<4|ipv4MinLen/4 {
		return 0, 0, false
	}
	n := int(binary.BigEndian.Uint16(b[2:4]))
	return binary.BigEndian.Uint32(b[12:16]), binary.BigEndian.Uint32(b[16:20]), n >= ipv4MinLen && n <= len(b)
}

// Destination is the step of ParseIP that routing needs, for the path on which every packet
// pays for each nanosecond. It checks version and lengths as ParseIP does,
// IPv6 extension headers excepted, so that after ok the fixed header, the IPv4
// options and every byte that the packet claims to have are in b.
func Destination(b []byte) (dst netip.Addr, etherType uint16, ok bool) {
	if len(b) < ipv4MinLen {
		return netip.Addr{}, 0, false
	}
	switch b[0] >> 4 {
	case 4:
		if hl, n := ipv4Lengths(b); hl >= ipv4MinLen && n >= hl && n <= len(b) {
			return netip.AddrFrom4([4]byte(b[16:20])), EtherTypeIPv4, true
		}
	case 6:
		if len(b) >= ipv6Len && ipv6Total(b) <= len(b) {
			return netip.AddrFrom16([16]byte(b[24:40])), EtherTypeIPv6, true
		}
	}
	return netip.Addr{}, 0, false
}
