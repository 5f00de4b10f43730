#include "textflag.h"

// func sumAVX2(p *byte, n int) uint64
//
// Of each 64-bit lane the whole is added to Y0..Y3, which wrap, and the upper
// half to Y4..Y7, which do not. Their difference, modulo 2^64, is the sum of the
// lower halves, and so nothing was lost: three additions and shifts per load
// where masking both halves would take four.
TEXT ·sumAVX2(SB), NOSPLIT, $0-24
	MOVQ  p+0(FP), SI
	MOVQ  n+8(FP), CX
	VPXOR Y0, Y0, Y0
	VPXOR Y1, Y1, Y1
	VPXOR Y2, Y2, Y2
	VPXOR Y3, Y3, Y3
	VPXOR Y4, Y4, Y4
	VPXOR Y5, Y5, Y5
	VPXOR Y6, Y6, Y6
	VPXOR Y7, Y7, Y7
	SUBQ  $128, CX
	JB    rest

	PCALIGN $32
loop:
	VMOVDQU (SI), Y8
	VMOVDQU 32(SI), Y9
	VMOVDQU 64(SI), Y10
	VMOVDQU 96(SI), Y11
	VPADDQ  Y8, Y0, Y0
	VPADDQ  Y9, Y1, Y1
	VPADDQ  Y10, Y2, Y2
	VPADDQ  Y11, Y3, Y3
	VPSRLQ  $32, Y8, Y8
	VPSRLQ  $32, Y9, Y9
	VPSRLQ  $32, Y10, Y10
	VPSRLQ  $32, Y11, Y11
	VPADDQ  Y8, Y4, Y4
	VPADDQ  Y9, Y5, Y5
	VPADDQ  Y10, Y6, Y6
	VPADDQ  Y11, Y7, Y7
	ADDQ    $128, SI
	SUBQ    $128, CX
	JAE     loop

rest:
	ADDQ $128, CX // 0, 32, 64 or 96 bytes are left
	JZ   reduce

one:
	VMOVDQU (SI), Y8
	VPADDQ  Y8, Y0, Y0
	VPSRLQ  $32, Y8, Y8
	VPADDQ  Y8, Y4, Y4
	ADDQ    $32, SI
	SUBQ    $32, CX
	JNZ     one

reduce:
	VPADDQ Y1, Y0, Y0
	VPADDQ Y3, Y2, Y2
	VPADDQ Y5, Y4, Y4
	VPADDQ Y7, Y6, Y6
	VPADDQ Y2, Y0, Y0
	VPADDQ Y6, Y4, Y4

	// whole - upper<<32 is the lower halves; add the upper ones to them.
	VPSLLQ $32, Y4, Y5
	VPSUBQ Y5, Y0, Y0
	VPADDQ Y4, Y0, Y0

	VEXTRACTI128 $1, Y0, X1
	VPADDQ       X1, X0, X0
	VPSRLDQ      $8, X0, X1
	VPADDQ       X1, X0, X0
	VMOVQ        X0, AX
	VZEROUPPER
	MOVQ         AX, ret+16(FP)
	RET

// func cpuid(leaf, subleaf uint32) (eax, ebx, ecx, edx uint32)
TEXT ·cpuid(SB), NOSPLIT, $0-24
	MOVL leaf+0(FP), AX
	MOVL subleaf+4(FP), CX
	CPUID
	MOVL AX, eax+8(FP)
	MOVL BX, ebx+12(FP)
	MOVL CX, ecx+16(FP)
	MOVL DX, edx+20(FP)
	RET

// func xgetbv() (xcr0 uint32)
TEXT ·xgetbv(SB), NOSPLIT, $0-4
	XORL CX, CX
	XGETBV
	MOVL AX, xcr0+0(FP)
	RET
