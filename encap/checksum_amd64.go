package encap

import "math/bits"

// hasAVX2 is what the processor and the operating system say, and never changes.
var hasAVX2 = detectAVX2()

// minAVX2 is the length in bytes from which sumAVX2 is faster than sumPortable.
const minAVX2 = 128

// vectorLen is the length of an AVX2 register in bytes.
const vectorLen = 32

// sum adds b as little-endian words to acc, end-around carry included.
func sum(b []byte, acc uint64) uint64 {
	if len(b) < minAVX2 || !hasAVX2 {
		return sumPortable(b, acc)
	}
	n := len(b) &^ (vectorLen - 1)
	acc, carry := bits.Add64(acc, sumAVX2(&b[0], n), 0)
	if n == len(b) {
		return acc + carry
	}
	return sumPortable(b[n:], acc+carry) // cannot wrap, as in sumPortable
}

// sumAVX2 returns the sum of the n bytes at p as little-endian 32-bit words, which
// has no carry to lose: n is a multiple of vectorLen, not 0, and below 2³³.
//
//go:noescape
func sumAVX2(p *byte, n int) uint64

// detectAVX2 follows Intel's manual (volume 1, section 14.7.1): the processor has
// AVX2, and the operating system saves the registers that it uses.
func detectAVX2() bool {
	const (
		osxsave = 1 << 27 // leaf 1, ECX
		avx     = 1 << 28 // leaf 1, ECX
		avx2    = 1 << 5  // leaf 7, EBX
		xmmYmm  = 6       // XCR0
	)
	if leaves, _, _, _ := cpuid(0, 0); leaves < 7 {
		return false
	}
	if _, _, ecx, _ := cpuid(1, 0); ecx&(osxsave|avx) != osxsave|avx {
		return false
	}
	if xgetbv()&xmmYmm != xmmYmm {
		return false
	}
	_, ebx, _, _ := cpuid(7, 0)
	return ebx&avx2 != 0
}

// cpuid returns the registers of the CPUID instruction.
func cpuid(leaf, subleaf uint32) (eax, ebx, ecx, edx uint32)

// xgetbv returns the low half of XCR0. Without OSXSAVE it is an illegal instruction.
func xgetbv() (xcr0 uint32)
