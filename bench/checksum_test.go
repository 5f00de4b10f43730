package bench

import (
	"fmt"
	"testing"

	"github.com/overlayd/overlayd/encap"
)

// BenchmarkChecksum is the sum of RFC 1071 over data in the cache, as encap uses
// it and in plain Go. The last size is a superpacket.
func BenchmarkChecksum(b *testing.B) {
	data := make([]byte, 61440)
	for i := range data {
		data[i] = byte(i*7 + i>>8)
	}
	for _, size := range []int{64, 1408, 61440} {
		for _, v := range []struct {
			name string
			sum  func([]byte, uint16) uint16
		}{{"fast", encap.Sum}, {"portable", encap.SumPortable}} {
			b.Run(fmt.Sprintf("%d/%s", size, v.name), func(b *testing.B) {
				b.SetBytes(int64(size))
				b.ReportAllocs()
				var sum uint16
				for range b.N {
					sum |= v.sum(data[:size], 0)
				}
				if want := encap.SumPortable(data[:size], 0); sum != want {
					b.Fatalf("sum %#04x, want %#04x", sum, want)
				}
			})
		}
	}
}
