package encap

import (
	"encoding/binary"
	"math/bits"
)

// Odd constants without structure (the fractional digits of the square roots of
// 2, 3 and 5), so that no address pair found in practice is a fixed point.
const (
	flowKey0 = 0x6a09e667f3bcc909
	flowKey1 = 0xbb67ae8584caa73b
	flowKey2 = 0x3c6ef372fe94f82b
)

// QuickHash returns a hash of the flow of the packet b, which has passed Destination and no
// more: of addresses, protocol and, for TCP and UDP, ports. Every fragment of a
// datagram, the first included, hashes without ports, so that all of
// them take one path. For IPv6 with extension headers it takes the
// first one's number as the protocol and sees no ports. Equal flows hash equally in every process.
func QuickHash(b []byte) uint32 {
	if b[0]>>4 != 4 {
		return flowHash6(b, flowPorts(b[:ipv6Total(b)], ipv6Len, b[6]), b[6])
	}
	var ports uint32
	if binary.BigEndian.Uint16(b[6:8])&(ipv4MoreFragments|ipv4OffsetMask) == 0 {
		hl, n := ipv4Lengths(b)
		ports = flowPorts(b[:n], hl, b[9])
	}
	return flowHash4(b, ports, b[9])
}

// flowPorts returns both ports of the TCP or UDP header at off, else 0.
func flowPorts(b []byte, off int, proto uint8) uint32 {
	if (proto == ProtoTCP || proto == ProtoUDP) && len(b) >= off+4 {
		return binary.BigEndian.Uint32(b[off:])
	}
	return 0
}

func flowHash4(b []byte, ports uint32, proto uint8) uint32 {
	return mix(binary.BigEndian.Uint64(b[12:20])^flowKey0, flowTail(ports, proto)^flowKey1)
}

func flowHash6(b []byte, ports uint32, proto uint8) uint32 {
	a := (*[32]byte)(b[8:40])
	hi1, lo1 := bits.Mul64(binary.BigEndian.Uint64(a[0:])^flowKey0, binary.BigEndian.Uint64(a[8:])^flowKey1)
	hi2, lo2 := bits.Mul64(binary.BigEndian.Uint64(a[16:])^flowKey1, binary.BigEndian.Uint64(a[24:])^flowKey2)
	return mix(hi1^lo1^flowKey2, bits.RotateLeft64(hi2^lo2, 23)^flowTail(ports, proto))
}

func flowTail(ports uint32, proto uint8) uint64 { return uint64(ports)<<8 | uint64(proto) }

// mix folds the 128-bit products of a and b so that each bit of either moves
// about half the bits of the result.
func mix(a, b uint64) uint32 {
	hi, lo := bits.Mul64(a, b)
	hi, lo = bits.Mul64(hi^lo, flowKey2)
	x := hi ^ lo
	return uint32(x>>32) ^ uint32(x)
}
