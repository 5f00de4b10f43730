package guard

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/nftables/expr"
)

// meets evaluates as the kernel does, for a header that is all that there is of the packet.
func meets(t *testing.T, c cond, header []byte) bool {
	var reg []byte
	for _, x := range c.exprs {
		switch x := x.(type) {
		case *expr.Payload:
			if int(x.Offset+x.Len) > len(header) {
				return false
			}
			reg = slices.Clone(header[x.Offset:][:x.Len])
		case *expr.Bitwise:
			for i := range reg {
				reg[i] = reg[i]&x.Mask[i] ^ x.Xor[i]
			}
		case *expr.Cmp:
			if bytes.Equal(reg, x.Data) != (x.Op == expr.CmpOpEq) {
				return false
			}
		default:
			t.Fatalf("unexpected %T", x)
		}
	}
	return true
}

// TestWithin: for every length of prefix the compares mean what the prefix means, and read what the kernel reads fast.
func TestWithin(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for name, f := range map[string]field{
		"source over IPv4": outerSource(ipv4), "destination over IPv4": outerDestination(ipv4), "inner source of IPv4": innerSource(ipv4), "inner destination of IPv4": innerDestination(ipv4),
		"source over IPv6": outerSource(ipv6), "destination over IPv6": outerDestination(ipv6), "inner source of IPv6": innerSource(ipv6), "inner destination of IPv6": innerDestination(ipv6),
	} {
		n := bitsOf(f.family)
		header := make([]byte, int(f.offset)+n/8)
		for i := range header {
			header[i] = byte(random.Uint32())
		}
		for length := range n + 1 {
			at := header[f.offset:]
			addr, _ := netip.AddrFromSlice(at)
			p := netip.PrefixFrom(addr, length).Masked()
			for _, x := range f.within(p, false).exprs {
				if l, ok := x.(*expr.Payload); ok && (l.Len > 4 || l.Len&(l.Len-1) != 0 || l.Offset%l.Len != 0) {
					t.Errorf("%s, /%d: reads %d bytes at %d", name, length, l.Len, l.Offset)
				}
			}
			for flip := -1; flip < n; flip++ {
				if flip >= 0 {
					at[flip/8] ^= 0x80 >> (flip % 8)
				}
				want := flip < 0 || flip >= length
				if meets(t, f.within(p, false), header) != want || meets(t, f.within(p, true), header) == want {
					t.Errorf("%s, /%d: with bit %d of it other, want %v", name, length, flip, want)
				}
				if flip >= 0 {
					at[flip/8] ^= 0x80 >> (flip % 8)
				}
			}
			if f.base == expr.PayloadBaseTransportHeader && meets(t, f.within(p, false), header[:len(header)-1]) {
				t.Errorf("%s, /%d: a packet meets it that has not all of the address", name, length)
			}
		}
	}
}
