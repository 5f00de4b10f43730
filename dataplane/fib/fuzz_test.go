package fib

import (
	"net/netip"
	"testing"
)

// FuzzTable reads routes from data, six bytes each (family and length, then the
// bytes of an address that matter), and compares the table with the golden one.
func FuzzTable(f *testing.F) {
	f.Add([]byte{24, 10, 1, 2, 0, 0, 24, 10, 1, 3, 0, 0, 8, 10, 0, 0, 0, 0}, uint32(0x0a010203), false)
	f.Add([]byte{0, 0, 0, 0, 0, 0, 32, 255, 255, 255, 255, 0}, uint32(0xffffffff), false)
	f.Add([]byte{128 + 64, 0xfd, 0, 0, 1, 0, 128 + 48, 0xfd, 0, 0, 1, 0}, uint32(0xfd000001), true)
	f.Fuzz(func(t *testing.T, data []byte, probe uint32, probe6 bool) {
		var g golden
		for ; len(data) >= 6 && len(g) < 64; data = data[6:] {
			addr := fuzzAddr([4]byte(data[1:5]), data[5], data[0] >= 128)
			bits := int(data[0]&127) % (addr.BitLen() + 1)
			g = append(g, Route[int]{Prefix: netip.PrefixFrom(addr, bits), Value: &[]int{len(g)}[0]})
		}
		var table Table[int]
		table.Replace(g)
		check(t, &table, g, fuzzAddr([4]byte{byte(probe >> 24), byte(probe >> 16), byte(probe >> 8), byte(probe)}, 1, probe6))
	})
}

func fuzzAddr(b [4]byte, low byte, v6 bool) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0: b[0], 1: b[1], 5: b[2], 7: b[3], 15: low})
	}
	return netip.AddrFrom4(b)
}
