package encap

import (
	"encoding/binary"
	"net/netip"
)

const (
	icmpEchoReply   = 0   // RFC 792
	icmpv6EchoReply = 129 // RFC 4443 section 4.2
)

// ProbeHeader is the length in bytes of what PutProbe writes in front of zeros, from that address.
func ProbeHeader(from netip.Addr) int {
	if from.Is4() {
		return ipv4MinLen + icmpLen
	}
	return ipv6Len + icmpLen
}

// PutProbe makes all of b a packet that asks nothing: an echo reply (RFC 792, RFC 4443 section 4.2) with that identifier and sequence
// number, which a host that has sent no such request drops in silence. It finds out whether a path takes len(b) bytes. from
// and to are of one family. It panics if b is shorter than its headers.
func PutProbe(b []byte, from, to netip.Addr, nonce uint32) (etherType uint16) {
	clear(b)
	if from.Is4() {
		b[ipv4MinLen] = icmpEchoReply
		binary.BigEndian.PutUint32(b[ipv4MinLen+4:], nonce)
		putICMP4(b, 0, from.As4(), to.As4())
		return EtherTypeIPv4
	}
	b[ipv6Len] = icmpv6EchoReply
	binary.BigEndian.PutUint32(b[ipv6Len+4:], nonce)
	putICMP6(b, from.As16(), to.As16())
	return EtherTypeIPv6
}
