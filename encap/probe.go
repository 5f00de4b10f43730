package encap

import (
	"encoding/binary"
	"net/netip"
)

const (
	icmpEchoReply   = 0   // RFC 792
	icmpv6EchoReply = 129 // RFC 4443 section 4.2
)

// ProbeHeader is the length in bytes of what PutProbe writes in front of zeros, for that IP version.
func ProbeHeader(version uint8) int {
	if version == 4 {
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
		h, icmp := b[:ipv4MinLen], b[ipv4MinLen:]
		h[0] = 0x45
		binary.BigEndian.PutUint16(h[2:4], uint16(len(b)))
		binary.BigEndian.PutUint32(h[4:8], ipv4DontFragment)
		h[8], h[9] = 64, protoICMP
		copy(h[12:16], from.AsSlice())
		copy(h[16:20], to.AsSlice())
		binary.BigEndian.PutUint16(h[10:12], ^Sum(h, 0))
		icmp[0] = icmpEchoReply
		binary.BigEndian.PutUint32(icmp[4:8], nonce)
		binary.BigEndian.PutUint16(icmp[2:4], ^Sum(icmp, 0))
		return EtherTypeIPv4
	}
	h, icmp := b[:ipv6Len], b[ipv6Len:]
	binary.BigEndian.PutUint32(h[0:4], 6<<28)
	binary.BigEndian.PutUint16(h[4:6], uint16(len(icmp)))
	h[6], h[7] = protoICMPv6, 64
	copy(h[8:24], from.AsSlice())
	copy(h[24:40], to.AsSlice())
	icmp[0] = icmpv6EchoReply
	binary.BigEndian.PutUint32(icmp[4:8], nonce)
	binary.BigEndian.PutUint16(icmp[2:4], ^Sum(icmp, pseudoSum(h, protoICMPv6, len(icmp))))
	return EtherTypeIPv6
}
