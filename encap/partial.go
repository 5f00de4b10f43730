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

// checksummed is the part of a packet that a TCP or UDP checksum covers.
type checksummed struct {
	l4     []byte // header and payload
	field  int    // offset in l4 of the checksum
	pseudo uint16 // sum of the pseudo-header
}

// locate finds the checksum of the packet b that ParseIP read into ip. ok is
// false where there is none to be found: in fragments, other protocols, headers
// that do not fit, and UDP that has none (RFC 768: the field is 0; over IPv6
// that is wrong, RFC 8200 section 8.1, which the receiving stack deals with).
func locate(b []byte, ip *IP) (c checksummed, ok bool) {
	if ip.Fragment {
		return c, false
	}
	l4 := b[ip.HeaderLen:ip.Len]
	switch {
	case ip.Proto == ProtoTCP && len(l4) >= tcpMinLen:
		return checksummed{l4, tcpChecksumOff, PseudoSum(b, ip, len(l4))}, true
	case ip.Proto == ProtoUDP && len(l4) >= udpLen:
		n := int(binary.BigEndian.Uint16(l4[4:6]))
		if n < udpLen || n > len(l4) || binary.BigEndian.Uint16(l4[udpChecksumOff:]) == 0 {
			return c, false
		}
		return checksummed{l4[:n], udpChecksumOff, PseudoSum(b, ip, n)}, true
	}
	return c, false
}

// partial reports whether the field holds the pseudo-header and no more.
func (c checksummed) partial() bool {
	return binary.BigEndian.Uint16(c.l4[c.field:]) == c.pseudo
}

// IsPartial reports whether the packet b that ParseIP read into ip has a partial
// TCP or UDP checksum. One in 65536 complete checksums looks partial too;
// CompleteChecksum leaves it as it is if it is right.
func IsPartial(b []byte, ip *IP) bool {
	c, ok := locate(b, ip)
	return ok && c.partial()
}

// CompleteChecksum completes the TCP or UDP checksum of the packet b that ParseIP
// read into ip if it is partial, and reports whether it was. A checksum that is
// complete stays as it is, right or wrong: what was damaged on its way must not
// be made to look sound.
func CompleteChecksum(b []byte, ip *IP) bool {
	c, ok := locate(b, ip)
	if !ok || !c.partial() {
		return false
	}
	// The pseudo-header is in the sum already: it is what the field holds.
	sum := Sum(c.l4, 0)
	field := ^sum
	if ip.Proto == ProtoUDP {
		field = udpChecksum(sum)
	}
	binary.BigEndian.PutUint16(c.l4[c.field:], field)
	return true
}

// VerifyChecksum reports whether the packet b that ParseIP read into ip has a TCP
// or UDP checksum that is complete and right. Where there is nothing to verify
// it is false too: what is to be merged must have been verified.
func VerifyChecksum(b []byte, ip *IP) bool {
	c, ok := locate(b, ip)
	return ok && Sum(c.l4, c.pseudo) == 0xffff
}

// udpChecksum returns the field for a sum over pseudo-header and datagram. It is
// never 0, which would say that there is none (RFC 768).
func udpChecksum(sum uint16) uint16 {
	if sum == 0xffff {
		return 0xffff
	}
	return ^sum
}
