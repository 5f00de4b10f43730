package bench

import (
	"encoding/binary"
	"net/netip"
)

// overlay returns the address of pod h of node i.
func overlay(i, h int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(h)})
}

// udpPacket returns an IPv4 UDP packet of size bytes, without UDP checksum.
func udpPacket(src, dst netip.Addr, size int) []byte {
	b := make([]byte, size)
	b[0], b[8], b[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(b[2:], uint16(size))
	copy(b[12:], src.AsSlice())
	copy(b[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(b[20:], 4242)
	binary.BigEndian.PutUint16(b[22:], 53)
	binary.BigEndian.PutUint16(b[24:], uint16(size-20))
	return b
}
