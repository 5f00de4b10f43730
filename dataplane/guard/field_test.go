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

// key is what a lookup finds in its registers, as the kernel loads them.
func key(t *testing.T, c cond, header []byte) string {
	var regs [64]byte
	end := 0
	for _, x := range c.exprs {
		switch x := x.(type) {
		case *expr.Payload:
			r := 4 * (x.DestRegister - words)
			clear(regs[r:][:(x.Len+3)/4*4])
			copy(regs[r:], header[x.Offset:][:x.Len])
			end = int(r + (x.Len+3)/4*4)
		case *expr.Bitwise:
			for i := range x.Mask {
				regs[4*(x.DestRegister-words):][i] &= x.Mask[i]
			}
		case *expr.Lookup:
			return string(regs[:end])
		default:
			t.Fatalf("unexpected %T", x)
		}
	}
	t.Fatal("no lookup")
	return ""
}

// TestKeys: a lookup has the key that a peer has in the set, for every length of prefix, and only that; it is as long as the set's keys.
func TestKeys(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	header := make([]byte, 100)
	for i := range header {
		header[i] = byte(random.Uint32())
	}
	for _, inner := range []family{ipv4, ipv6} {
		f, outer := innerSource(inner), outerSource(ipv4)
		n := bitsOf(inner)
		for bits := range n + 1 {
			set := pairSet(ipv4, inner, bits)
			c := in(set, false, bits, outer, f)
			addr, _ := netip.AddrFromSlice(header[f.offset:][:n/8])
			p := netip.PrefixFrom(addr, bits).Masked()
			want := string(header[outer.offset:][:4]) + prefixKey(p)
			if got := setOf(set).KeyLen(); got != len(want) {
				t.Errorf("/%d: keys of %d bytes, and %d in the set", bits, len(want), got)
			}
			for flip := -1; flip < n; flip++ {
				changed := slices.Clone(header)
				if flip >= 0 {
					changed[int(f.offset)+flip/8] ^= 0x80 >> (flip % 8)
				}
				if got, same := key(t, c, changed), flip < 0 || flip >= bits; (got == want) != same {
					t.Errorf("/%d, with bit %d other: key %x, of the peer %x", bits, flip, got, want)
				}
			}
		}
	}
}
