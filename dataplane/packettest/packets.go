// Package packettest makes IP packets for tests, and looks at them, by the letter of the RFCs and
// without the code that is tested.
package packettest

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
)

// UDP returns an IP packet with a complete checksum.
func UDP(src, dst netip.Addr, sport, dport uint16, payload []byte) []byte {
	l4 := make([]byte, 8, 8+len(payload))
	binary.BigEndian.PutUint16(l4[0:], sport)
	binary.BigEndian.PutUint16(l4[2:], dport)
	binary.BigEndian.PutUint16(l4[4:], uint16(8+len(payload)))
	return IP(src, dst, 17, append(l4, payload...))
}

// TCP returns an IP packet with ACK and PSH set and a complete checksum.
func TCP(src, dst netip.Addr, seq uint32, payload []byte) []byte {
	l4 := make([]byte, 20, 20+len(payload))
	binary.BigEndian.PutUint16(l4[0:], 4242)
	binary.BigEndian.PutUint16(l4[2:], 80)
	binary.BigEndian.PutUint32(l4[4:], seq)
	l4[12], l4[13] = 5<<4, 0x18
	return IP(src, dst, 6, append(l4, payload...))
}

// IP returns an IP packet of that protocol. The checksum of TCP and UDP is complete.
func IP(src, dst netip.Addr, proto byte, l4 []byte) []byte {
	var b []byte
	if src.Is4() {
		b = make([]byte, 20)
		b[0], b[8], b[9] = 0x45, 64, proto
		binary.BigEndian.PutUint16(b[2:], uint16(20+len(l4)))
		copy(b[12:], src.AsSlice())
		copy(b[16:], dst.AsSlice())
		binary.BigEndian.PutUint16(b[10:], ^Sum(b))
	} else {
		b = make([]byte, 40)
		b[0], b[6], b[7] = 0x60, proto, 64
		binary.BigEndian.PutUint16(b[4:], uint16(len(l4)))
		copy(b[8:], src.AsSlice())
		copy(b[24:], dst.AsSlice())
	}
	b = append(b, l4...)
	if field := checksumField(b); field != nil {
		binary.BigEndian.PutUint16(field, ^Sum(PseudoHeader(b), l4))
	}
	return b
}

// WithHeader returns a packet with options in its IPv4 header, or with one more IPv6 extension header of that kind in front of
// what it carries: n times eight bytes.
func WithHeader(p []byte, kind byte, n int) []byte {
	if p[0]>>4 == 4 {
		q := slices.Concat(p[:20], bytes.Repeat([]byte{1}, 8*n), p[20:])
		q[0] += byte(2 * n)
		return SetLength(q)
	}
	h := append([]byte{p[6], byte(n - 1), 1, byte(8*n - 4)}, make([]byte, 8*n-4)...) // PadN
	q := slices.Concat(p[:40], h, p[40:])
	q[6] = kind
	return SetLength(q)
}

// SetLength sets the length of an IP packet, and the checksum of an IPv4 header.
func SetLength(p []byte) []byte {
	if p[0]>>4 == 6 {
		binary.BigEndian.PutUint16(p[4:], uint16(len(p)-40))
		return p
	}
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	copy(p[10:12], []byte{0, 0})
	binary.BigEndian.PutUint16(p[10:], ^Sum(p[:HeaderLen(p)]))
	return p
}

// MakePartial makes of the checksum what a sender with checksum offload leaves behind.
func MakePartial(b []byte) []byte {
	binary.BigEndian.PutUint16(checksumField(b), Sum(PseudoHeader(b)))
	return b
}

// HeaderLen returns the length of the IP header in bytes. It knows no IPv6 extension headers.
func HeaderLen(b []byte) int {
	if b[0]>>4 == 6 {
		return 40
	}
	return int(b[0]&15) * 4
}

// checksumField returns the checksum of a TCP or UDP packet, or nil of others.
func checksumField(b []byte) []byte {
	proto, off := b[9], HeaderLen(b)
	if b[0]>>4 == 6 {
		proto = b[6]
	}
	switch proto {
	case 6:
		return b[off+16 : off+18]
	case 17:
		return b[off+6 : off+8]
	}
	return nil
}

// PseudoHeader returns what the TCP or UDP checksum of a packet covers besides the TCP or UDP part.
func PseudoHeader(b []byte) []byte {
	l4 := uint32(len(b) - HeaderLen(b))
	if b[0]>>4 == 6 {
		return append(binary.BigEndian.AppendUint32(append([]byte(nil), b[8:40]...), l4), 0, 0, 0, b[6])
	}
	return append(binary.BigEndian.AppendUint32(append([]byte(nil), b[12:20]...), l4), 0, b[9])
}

// Sum is the Internet checksum, RFC 1071 to the letter. All parts but the last have an even length.
func Sum(parts ...[]byte) uint16 {
	var sum uint32
	for _, b := range parts {
		for i := range b {
			if i%2 == 0 {
				sum += uint32(b[i]) << 8
			} else {
				sum += uint32(b[i])
			}
			sum = sum>>16 + sum&0xffff
		}
	}
	return uint16(sum>>16 + sum&0xffff)
}

// Sound reports whether the checksums of a TCP or UDP packet are complete and right.
func Sound(b []byte) bool {
	if b[0]>>4 == 4 && Sum(b[:HeaderLen(b)]) != 0xffff {
		return false
	}
	return Sum(PseudoHeader(b), b[HeaderLen(b):]) == 0xffff
}
