package encap

import "encoding/binary"

// ECN is the congestion field of an IP header: the lower two bits of TOS or
// traffic class (RFC 3168 section 5).
type ECN uint8

// The codepoints of ECN.
const (
	ECNNot ECN = 0 // not ECN-capable transport
	ECN1   ECN = 1 // ECT(1)
	ECN0   ECN = 2 // ECT(0)
	ECNCE  ECN = 3 // congestion experienced

	ecnMask = 3
)

// PacketECN returns the ECN field of the packet b, which Destination or ParseIP
// has accepted. In normal mode (RFC 6040 section 4.1) it is that of the outer
// header too. The Linux vxlan device differs in one case (checked on kernel
// 6.18): it sends CE out as ECT(0), as RFC 3168 had it.
func PacketECN(b []byte) ECN {
	if b[0]>>4 == 4 {
		return ECN(b[1] & ecnMask)
	}
	return ECN(b[1] >> 4 & ecnMask)
}

// DecapECN carries the ECN field of the outer header over to the packet b, which
// Destination or ParseIP has accepted, by the rules of RFC 6040 section 4.2. It is
// false if b must be dropped: the underlay saw congestion, and loss is the
// only signal that the sender of b understands. The IPv4 header checksum is
// updated, so that a wrong one stays wrong.
func DecapECN(b []byte, outer ECN) bool {
	inner := PacketECN(b)
	switch {
	case outer == ECNCE && inner == ECNNot:
		return false
	case outer == ECNCE && inner != ECNCE:
		setECN(b, ECNCE)
	case outer == ECN1 && inner == ECN0:
		setECN(b, ECN1)
	}
	return true
}

// setECN replaces the ECN field of b.
func setECN(b []byte, ecn ECN) {
	if b[0]>>4 != 4 {
		b[1] = b[1]&^(ecnMask<<4) | byte(ecn)<<4
		return
	}
	from := binary.BigEndian.Uint16(b[0:2])
	b[1] = b[1]&^ecnMask | byte(ecn)
	to := binary.BigEndian.Uint16(b[0:2])
	field := binary.BigEndian.Uint16(b[10:12])
	binary.BigEndian.PutUint16(b[10:12], updateChecksum(field, from, to))
}

// updateChecksum returns the checksum after a word that it covers has changed
// (RFC 1624 section 3, equation 3).
func updateChecksum(field, from, to uint16) uint16 {
	return ^Fold(uint64(^field) + uint64(^from) + uint64(to))
}
