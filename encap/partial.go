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
	l4    []byte // header and payload
	field []byte // two bytes of l4
	udp   bool
}

// locate finds the checksum of the packet b that ParseIP read into ip. ok is
// false where there is none that can be told: fragments, other protocols, headers
// that do not fit, UDP that has none (RFC 768: the field is 0; over IPv6 that is
// an error, RFC 8200 section 8.1, which the receiving stack deals with).
func locate(b []byte, ip *IP) (c checksummed, ok bool) {
	if ip.Fragment {
		return c, false
	}
	l4 := b[ip.HeaderLen:ip.Len]
	switch {
	case ip.Proto == ProtoTCP && len(l4) >= tcpMinLen:
		return checksummed{l4: l4, field: l4[tcpChecksumOff : tcpChecksumOff+2]}, true
	case ip.Proto == ProtoUDP && len(l4) >= udpLen:
		n := int(binary.BigEndian.Uint16(l4[4:6]))
		if n < udpLen || n > len(l4) {
			return c, false
		}
		field := l4[udpChecksumOff : udpChecksumOff+2]
		if field[0]|field[1] == 0 {
			return c, false
		}
		return checksummed{l4: l4[:n], field: field, udp: true}, true
	}
	return c, false
}

// IsPartial reports whether the packet b that ParseIP read into ip has a partial
// TCP or UDP checksum. One packet in 65536 with a complete checksum looks
// partial too; completing that one does not change it.
func IsPartial(b []byte, ip *IP) bool {
	c, ok := locate(b, ip)
	return ok && binary.BigEndian.Uint16(c.field) == PseudoSum(ip.Src, ip.Dst, ip.Proto, len(c.l4))
}

// CompleteChecksum completes the TCP or UDP checksum of the packet b that ParseIP
// read into ip if it is partial, and reports whether it was. A complete
// checksum is left as it is, right or wrong: a packet that was damaged on
// the way must not be made to look sound.
func CompleteChecksum(b []byte, ip *IP) bool {
	c, ok := locate(b, ip)
	if !ok || binary.BigEndian.Uint16(c.field) != PseudoSum(ip.Src, ip.Dst, ip.Proto, len(c.l4)) {
		return false
	}
	// The field itself, holding the pseudo-header sum, makes the sum complete.
	sum := ^Sum(c.l4, 0)
	if sum == 0 && c.udp {
		sum = 0xffff // RFC 768: 0 would mean that there is none
	}
	binary.BigEndian.PutUint16(c.field, sum)
	return true
}

// VerifyChecksum reports whether the packet b that ParseIP read into ip has a TCP
// or UDP checksum that is complete and right. It is false where there is
// nothing to verify, too: what is merged must have been verified.
func VerifyChecksum(b []byte, ip *IP) bool {
	c, ok := locate(b, ip)
	return ok && Sum(c.l4, PseudoSum(ip.Src, ip.Dst, ip.Proto, len(c.l4))) == 0xffff
}
