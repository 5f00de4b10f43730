package encap

import (
	"encoding/binary"
	"net/netip"
)

// The IPv6 extension headers that ParseIP walks over (IANA protocol numbers).
const (
	extHopByHop    = 0
	extRouting     = 43
	extFragment    = 44
	extAuth        = 51
	extDestination = 60
)

// maxExtensions bounds the walk over IPv6 extension headers. RFC 8200 section 4.1
// knows seven of them per packet at most.
const maxExtensions = 8

// ipv6Total returns the length of the packet by its header, which is at least
// ipv6Len bytes long. A jumbogram (RFC 2675) looks like a bare header.
func ipv6Total(b []byte) int {
	return ipv6Len + int(binary.BigEndian.Uint16(b[4:6]))
}

// parseIPv6 reads the header of RFC 8200 section 3 and what extends it:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|Version| Traffic Class |           Flow Label                  |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|         Payload Length        |  Next Header  |   Hop Limit   |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                  Source Address (128 bits)                    |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                Destination Address (128 bits)                 |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
func parseIPv6(b []byte, ip *IP) error {
	if len(b) < ipv6Len {
		return ErrShort
	}
	n := ipv6Total(b)
	if n > len(b) {
		return ErrIP
	}
	ip.Version = 6
	ip.Proto = b[6]
	ip.Src = netip.AddrFrom16([16]byte(b[8:24]))
	ip.Dst = netip.AddrFrom16([16]byte(b[24:40]))
	ip.HeaderLen = ipv6Len
	ip.Len = n
	ip.Fragment = false
	ip.First = true
	return skipExtensions(b[:n], ip)
}

// skipExtensions moves ip.Proto and ip.HeaderLen past the extension headers, at
// most maxExtensions of them. It stops before a routing header that has hops to
// go, because the checksum of what follows is not over ip.Dst (RFC 8200 section
// 8.1), and behind the fragment header of all but a first fragment.
func skipExtensions(b []byte, ip *IP) error {
	for range maxExtensions {
		if !isExtension(ip.Proto) {
			return nil
		}
		h := b[ip.HeaderLen:]
		if len(h) < 8 {
			return ErrIP
		}
		n := (int(h[1]) + 1) * 8 // RFC 8200 section 4: eight octets less one
		switch ip.Proto {
		case extRouting:
			if h[3] != 0 {
				return nil
			}
		case extFragment:
			n = 8
			frag := binary.BigEndian.Uint16(h[2:4])
			if frag&^0x6 != 0 { // offset and M; not the two reserved bits
				ip.Fragment = true
				ip.First = frag>>3 == 0
			}
		case extAuth:
			n = (int(h[1]) + 2) * 4 // RFC 4302 section 2.2: four octets less two
		}
		if n > len(h) {
			return ErrIP
		}
		ip.Proto = h[0]
		ip.HeaderLen += n
		if !ip.First {
			return nil
		}
	}
	return nil
}

func isExtension(proto uint8) bool {
	switch proto {
	case extHopByHop, extRouting, extFragment, extAuth, extDestination:
		return true
	}
	return false
}
