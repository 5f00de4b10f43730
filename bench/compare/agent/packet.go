package agent

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/encap"
)

// Datagram is an IP packet with a UDP datagram, without a checksum of that.
func Datagram(src, dst netip.Addr, srcPort, dstPort uint16, payload []byte) []byte {
	length := 8 + len(payload)
	var b []byte
	if src.Is6() {
		b = append(b, 0x60, 0, 0, 0, byte(length>>8), byte(length), unix.IPPROTO_UDP, 64)
	} else {
		total := 20 + length
		b = append(b, 0x45, 0, byte(total>>8), byte(total), 0, 1, 0, 0, 64, unix.IPPROTO_UDP, 0, 0)
	}
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	if src.Is4() {
		binary.BigEndian.PutUint16(b[10:], ^encap.Sum(b[:20], 0))
	}
	b = binary.BigEndian.AppendUint16(b, srcPort)
	b = binary.BigEndian.AppendUint16(b, dstPort)
	b = binary.BigEndian.AppendUint16(b, uint16(length))
	return append(append(b, 0, 0), payload...)
}

// fragment cuts an IPv4 packet behind 8 bytes of its payload (RFC 791 section 3.2).
func fragment(b []byte) [2][]byte {
	first, rest := append([]byte{}, b[:28]...), append(append([]byte{}, b[:20]...), b[28:]...)
	binary.BigEndian.PutUint16(first[6:], 0x2000) // more to come
	binary.BigEndian.PutUint16(rest[6:], 1)       // 8 bytes on
	for _, f := range [][]byte{first, rest} {
		binary.BigEndian.PutUint16(f[2:], uint16(len(f)))
	}
	return [2][]byte{first, rest}
}
