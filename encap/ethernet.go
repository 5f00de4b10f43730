package encap

import "encoding/binary"

// EthernetLen is the length of the inner Ethernet header in bytes; an 802.1Q
// tag is not part of it.
const EthernetLen = 2*MACLen + 2

// The EtherTypes that an overlay carries (IEEE 802 numbers, IANA registry).
const (
	EtherTypeIPv4 = 0x0800
	EtherTypeIPv6 = 0x86dd
)

// The inner Ethernet header (RFC 7348 section 5):
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                     Destination MAC Address                   |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|    Destination MAC Address    |      Source MAC Address       |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                       Source MAC Address                      |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|           EtherType           |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+

// ParseEthernet reads the Ethernet header at the start of b. The payload is
// b[EthernetLen:], and may be followed by padding. A buffer of less than
// EthernetLen bytes is ErrShort.
func ParseEthernet(b []byte) (dst, src MAC, etherType uint16, err error) {
	if len(b) < EthernetLen {
		return MAC{}, MAC{}, 0, ErrShort
	}
	return MAC(b[0:6]), MAC(b[6:12]), binary.BigEndian.Uint16(b[12:14]), nil
}

// PutEthernet writes an Ethernet header to b[:EthernetLen]. It panics if b is
// shorter.
func PutEthernet(b []byte, dst, src MAC, etherType uint16) {
	h := (*[EthernetLen]byte)(b)
	*(*MAC)(h[0:6]) = dst
	*(*MAC)(h[6:12]) = src
	binary.BigEndian.PutUint16(h[12:14], etherType)
}
