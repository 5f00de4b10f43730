package encap

import (
	"encoding/binary"
	"math/bits"
)

// SumPortable is Sum in plain Go, for every machine. It is the fallback of Sum,
// and what benchmarks compare Sum with.
func SumPortable(b []byte, initial uint16) uint16 {
	return bits.ReverseBytes16(Fold(sumPortable(b, uint64(bits.ReverseBytes16(initial)))))
}

// sumPortable adds b as little-endian words to acc, end-around carry included.
func sumPortable(b []byte, acc uint64) uint64 {
	var carry uint64
	for len(b) >= 64 {
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b[0:8]), 0)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b[8:16]), carry)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b[16:24]), carry)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b[24:32]), carry)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b[32:40]), carry)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b[40:48]), carry)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b[48:56]), carry)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b[56:64]), carry)
		acc += carry // cannot wrap: the sum that carried is not all ones
		b = b[64:]
	}
	for len(b) >= 8 {
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b), 0)
		acc += carry
		b = b[8:]
	}
	acc, carry = bits.Add64(acc, tail(b), 0)
	return acc + carry
}

// tail returns the sum of the fewer than eight bytes of b.
func tail(b []byte) (sum uint64) {
	if len(b) >= 4 {
		sum = uint64(binary.LittleEndian.Uint32(b))
		b = b[4:]
	}
	if len(b) >= 2 {
		sum += uint64(binary.LittleEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) > 0 {
		sum += uint64(b[0])
	}
	return sum
}
