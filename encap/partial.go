package encap

import "encoding/binary"

// Inside a Linux host a TCP or UDP checksum often is partial: the field holds the
// folded pseudo-header sum, not complemented, and whoever puts the packet on a
// wire has to finish it. A kernel vxlan peer on the same machine hands such
// packets to a plain UDP socket without a sign (measured on kernel 6.18: all of
// them, by default offloads), so the only way to know is to compare.

const (
	tcpMinLen      = 20
	udpLen         = 8
	tcpChecksumOff = 16
	udpChecksumOff = 6
)

// locate finds the checksum of the packet b that ParseIP read into ip: the offset
// in b of its field, and how many bytes from ip.HeaderLen on it covers. That is
// 0 if no checksum is to be made: in fragments, other protocols, headers
// that do not fit, and UDP without a checksum (RFC 768: the field is 0; over IPv6
// that is wrong, RFC 8200 section 8.1, which the receiving stack deals with).
func locate(b []byte, ip *IP) (field, covered int) {
	if ip.Fragment {
		return 0, 0
	}
	l4 := b[ip.HeaderLen:ip.Len]
	switch {
	case ip.Proto == ProtoTCP && len(l4) >= tcpMinLen:
		return ip.HeaderLen + tcpChecksumOff, len(l4)
	case ip.Proto == ProtoUDP && len(l4) >= udpLen:
		n := int(binary.BigEndian.Uint16(l4[4:6]))
		if n < udpLen || n > len(l4) || binary.BigEndian.Uint16(l4[udpChecksumOff:]) == 0 {
			return 0, 0
		}
		return ip.HeaderLen + udpChecksumOff, n
	}
	return 0, 0
}

// IsPartial reports whether the packet b that ParseIP read into ip has a partial
// TCP or UDP checksum. One in 65536 complete checksums looks partial too;
// CompleteChecksum leaves it as it is if it is right.
func IsPartial(b []byte, ip *IP) bool {
	field, n := locate(b, ip)
	return n > 0 && binary.BigEndian.Uint16(b[field:]) == pseudoSum(b, ip.Proto, n)
}

// CompleteChecksum completes the TCP or UDP checksum of the packet b that ParseIP
// read into ip if it is partial, and reports whether it was. A checksum that is
// complete stays as it is, right or wrong: what was damaged on its way must not
// be made to look sound.
func CompleteChecksum(b []byte, ip *IP) bool {
	field, n := locate(b, ip)
	if n == 0 || binary.BigEndian.Uint16(b[field:]) != pseudoSum(b, ip.Proto, n) {
		return false
	}
	// The pseudo-header is in the sum already: it is what the field holds.
	sum := Sum(b[ip.HeaderLen:ip.HeaderLen+n], 0)
	checksum := ^sum
	if ip.Proto == ProtoUDP {
		checksum = udpChecksum(sum)
	}
	binary.BigEndian.PutUint16(b[field:], checksum)
	return true
}

// VerifyChecksum reports whether the packet b that ParseIP read into ip has a TCP
// or UDP checksum that is complete and right. If there is nothing to verify
// it is false too: what is to be merged must have been verified.
func VerifyChecksum(b []byte, ip *IP) bool {
	_, n := locate(b, ip)
	return n > 0 && Sum(b[ip.HeaderLen:ip.HeaderLen+n], pseudoSum(b, ip.Proto, n)) == 0xffff
}

// udpChecksum returns the field for a sum over pseudo-header and datagram. It is
// never 0, which would mean that the sender made none (RFC 768).
func udpChecksum(sum uint16) uint16 {
	if sum == 0xffff {
		return 0xffff
	}
	return ^sum
}
