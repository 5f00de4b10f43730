package encap

import (
	"encoding/binary"
	"math/bits"
)

// Sum returns the ones' complement sum (RFC 1071) of b as big-endian 16-bit words
// added to initial, folded and not complemented. An odd last byte is
// padded with zero, so a sum is continued over several buffers by passing
// it on as initial only if all but the last have even length.
//
// It uses AVX2 if the processor has it, and is SumPortable everywhere else.
func Sum(b []byte, initial uint16) uint16 {
	// Words are loaded little-endian, which costs nothing on most machines: the
	// sum of swapped words is the swapped sum (RFC 1071 section 2 (B)).
	return bits.ReverseBytes16(Fold(sum(b, uint64(bits.ReverseBytes16(initial)))))
}

// Fold adds the 16-bit words of sum until one is left. It never turns a
// sum other than 0 into 0.
func Fold(sum uint64) uint16 {
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	return uint16(sum)
}

// pseudoSum returns the folded, not complemented sum of the pseudo-header of TCP
// and UDP (RFC 9293 section 3.1, RFC 8200 section 8.1) for the packet b, whose fixed header
// is all there; length is that of L4 header and payload in bytes. For so
// few bytes a call of Sum would cost more than what it does.
func pseudoSum(b []byte, proto uint8, length int) uint16 {
	sum := uint64(proto) + uint64(length)
	if b[0]>>4 == 6 {
		a := (*[32]byte)(b[8:40])
		sum += halves(a[0:]) + halves(a[8:]) + halves(a[16:]) + halves(a[24:])
	} else {
		sum += halves(b[12:20])
	}
	return Fold(sum)
}

// ipv4Sum returns the sum of an IPv4 header without options. It is 0xffff if
// the header checksum is right.
func ipv4Sum(b []byte) uint16 {
	h := (*[ipv4MinLen]byte)(b)
	return Fold(halves(h[0:]) + halves(h[8:]) + uint64(binary.BigEndian.Uint32(h[16:])))
}

// halves returns the sum of the first two 32-bit words of b.
func halves(b []byte) uint64 {
	w := binary.BigEndian.Uint64(b)
	return w>>32 + w&0xffffffff
}
