package encap

import "math/bits"

// Sum returns the ones' complement sum (RFC 1071) of b as big-endian 16-bit words
// added to initial, folded and not complemented. An odd last byte is
// padded with zero, so a sum is continued over several buffers by passing
// it on as initial only if all but the last have even length.
//
// It uses AVX2 where the processor has it, and is SumPortable everywhere else.
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

// PseudoSum returns the folded, not complemented sum of the pseudo-header of TCP
// and UDP (RFC 9293 section 3.1, RFC 8200 section 8.1) for the packet b that
// ParseIP read into ip, where length is that of L4 header and payload in bytes.
func PseudoSum(b []byte, ip *IP, length int) uint16 {
	return pseudoSum(b, ip.Proto, length)
}

// pseudoSum is PseudoSum for the packet b, whose fixed header is all there.
func pseudoSum(b []byte, proto uint8, length int) uint16 {
	addrs := b[12:20]
	if b[0]>>4 == 6 {
		addrs = b[8:40]
	}
	return Sum(addrs, Fold(uint64(proto)+uint64(length)))
}
