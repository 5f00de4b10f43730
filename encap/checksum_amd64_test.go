package encap

import "testing"

// TestSumPortableHere keeps the fallback tested where Sum does not use it.
func TestSumPortableHere(t *testing.T) {
	b := pattern(3000)
	for n := range b {
		if got, want := SumPortable(b[:n], 0x1234), slowSum(b[:n], 0x1234); got != want {
			t.Fatalf("SumPortable of %d bytes = %#04x, want %#04x", n, got, want)
		}
	}
}

// TestSumAVX2 sums all that the assembly may be called with, lengths included
// for which Sum does not call it.
func TestSumAVX2(t *testing.T) {
	if !hasAVX2 {
		t.Log("no AVX2 on this processor: only the fallback was tested")
		return
	}
	ones := make([]byte, 1<<17)
	for i := range ones {
		ones[i] = 0xff
	}
	for _, data := range [][]byte{pattern(1 << 17), ones} {
		for n := vectorLen; n <= len(data); n += vectorLen * (1 + n/4096) {
			if got, want := Fold(sumAVX2(&data[0], n)), Fold(sumPortable(data[:n], 0)); got != want {
				t.Fatalf("sumAVX2 of %d bytes = %#04x, want %#04x", n, got, want)
			}
		}
	}
}
