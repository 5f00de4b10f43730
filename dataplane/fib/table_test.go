package fib

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
)

// golden is the slow obvious reference of Table: it tries every route.
type golden []Route[int]

func (g golden) lookup(addr netip.Addr) *int {
	var best *int
	bits := -1
	for _, r := range g {
		if r.Prefix.Contains(addr.WithZone("")) && r.Prefix.Bits() >= bits {
			best, bits = r.Value, r.Prefix.Bits()
		}
	}
	return best
}

// check compares t with g at the addresses where they could differ: around the
// first and the last address of every prefix, and at extra.
func check(t *testing.T, table *Table[int], g golden, extra ...netip.Addr) {
	t.Helper()
	for _, r := range g {
		if !r.Prefix.IsValid() {
			continue
		}
		first, last := r.Prefix.Masked().Addr(), lastAddr(r.Prefix)
		extra = append(extra, first, first.Prev(), last, last.Next())
	}
	for _, a := range extra {
		if got, want := table.Lookup(a), g.lookup(a); got != want {
			t.Fatalf("Lookup(%s) = %v, want %v; routes %v", a, text(got), text(want), g)
		} else if a.Is4() && table.Lookup4(key(a)) != want {
			t.Fatalf("Lookup4(%s) = %v, want %v; routes %v", a, text(table.Lookup4(key(a))), text(want), g)
		}
	}
}

func text(v *int) any {
	if v == nil {
		return nil
	}
	return *v
}

func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func routes(prefixes ...string) golden {
	g := make(golden, len(prefixes))
	for i, s := range prefixes {
		g[i] = Route[int]{Value: &[]int{i}[0]}
		if s != "" {
			g[i].Prefix = netip.MustParsePrefix(s)
		}
	}
	return g
}

func TestLookup(t *testing.T) {
	for _, tt := range []struct {
		name   string
		routes golden
		addr   string
		want   int // index of the route, -1 for a miss
	}{
		{"empty table", routes(), "10.1.2.3", -1},
		{"one lease", routes("10.1.2.0/24"), "10.1.2.255", 0},
		{"below the only lease", routes("10.1.2.0/24"), "10.1.1.255", -1},
		{"above the only lease", routes("10.1.2.0/24"), "10.1.3.0", -1},
		{"hole between leases", routes("10.1.2.0/24", "10.1.4.0/24"), "10.1.3.1", -1},
		{"hole inside a shorter route", routes("10.1.2.0/24", "10.1.4.0/24", "10.1.0.0/16"), "10.1.3.1", 2},
		{"longest wins", routes("10.0.0.0/8", "10.1.2.0/24", "10.1.0.0/16"), "10.1.2.1", 1},
		{"longest wins though sparse", routes("10.0.0.0/8", "0.0.0.1/32", "10.1.2.3/32"), "10.1.2.3", 2},
		{"later duplicate wins in slots", routes("10.1.2.0/24", "10.1.2.0/24"), "10.1.2.1", 1},
		{"later duplicate wins in the trie", routes("10.0.0.0/8", "10.1.2.0/24", "10.0.0.0/8"), "10.9.9.9", 2},
		{"host bits are ignored in slots", routes("10.1.2.77/24"), "10.1.2.1", 0},
		{"host bits are ignored in the trie", routes("fd00::77/64"), "fd00::1", 0},
		{"default route", routes("0.0.0.0/0"), "255.255.255.255", 0},
		{"default route is of one family", routes("0.0.0.0/0"), "::1", -1},
		{"whole IPv4 space in slots of one bit", routes("0.0.0.0/1", "128.0.0.0/1"), "200.1.1.1", 1},
		{"last address", routes("255.255.255.255/32"), "255.255.255.255", 0},
		{"first address below a base", routes("255.255.255.255/32"), "0.0.0.0", -1},
		{"IPv6", routes("10.1.2.0/24", "fd00:0:0:1::/64", "fd00::/48"), "fd00:0:0:1::5", 1},
		{"IPv6 zone is ignored", routes("fe80::/10"), "fe80::1%eth0", 0},
		{"IPv4-mapped is not IPv4", routes("10.1.2.0/24", "10.0.0.0/8"), "::ffff:10.1.2.3", -1},
		{"IPv4-mapped is IPv6", routes("10.1.2.0/24", "::/0"), "::ffff:10.1.2.3", 1},
		{"IPv4-mapped prefix is IPv6", routes("::ffff:10.1.2.0/120"), "10.1.2.3", -1},
		{"invalid prefix is ignored", routes("", "10.1.2.0/24"), "10.1.2.1", 1},
		{"invalid address", routes("0.0.0.0/0", "::/0"), "", -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var table Table[int]
			table.Replace(tt.routes)
			var addr netip.Addr
			if tt.addr != "" {
				addr = netip.MustParseAddr(tt.addr)
			}
			got := -1
			if v := table.Lookup(addr); v != nil {
				got = *v
			}
			if got != tt.want {
				t.Errorf("Lookup(%s) = %d, want %d", tt.addr, got, tt.want)
			}
			check(t, &table, tt.routes)
		})
	}
}

func TestZeroTableMisses(t *testing.T) {
	var table Table[int]
	if v := table.Lookup(netip.MustParseAddr("10.1.2.3")); v != nil {
		t.Errorf("Lookup in a zero table = %d, want nil", *v)
	}
}

// TestDenseLeasesAreIndexed shows that the case the table is made for does
// not end up in the trie.
func TestDenseLeasesAreIndexed(t *testing.T) {
	for _, tt := range []struct {
		name  string
		g     golden
		slots int
	}{
		{"neighbours", routes("10.1.2.0/24", "10.1.3.0/24"), 2},
		{"ends of a /8", routes("10.0.0.0/24", "10.255.255.0/24"), 1 << 16},
		{"sparser than a /8", routes("10.0.0.0/24", "12.0.0.0/24"), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSnapshot(tt.g)
			if len(s.slots) != tt.slots || (s.rest == nil) != (tt.slots > 0) {
				t.Errorf("%d slots, trie %v; want %d slots", len(s.slots), s.rest != nil, tt.slots)
			}
		})
	}
}

// TestAgainstGolden replaces one table by random ones, dense and sparse, of one
// length and of many, of either family and of both.
func TestAgainstGolden(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	var table Table[int]
	for range 400 {
		g := randomRoutes(rnd)
		table.Replace(g)
		extra := make([]netip.Addr, 50)
		for i := range extra {
			extra[i] = randomAddr(rnd, rnd.IntN(2) == 0)
		}
		check(t, &table, g, extra...)
	}
}

func randomRoutes(rnd *rand.Rand) golden {
	g := make(golden, rnd.IntN(60))
	fixed, v6, mixed := 1+rnd.IntN(32), rnd.IntN(2) == 0, rnd.IntN(2) == 0
	for i := range g {
		addr := randomAddr(rnd, v6 && mixed && i%2 == 0)
		bits := fixed
		if mixed {
			bits = rnd.IntN(addr.BitLen() + 1)
		}
		g[i] = Route[int]{Prefix: netip.PrefixFrom(addr, bits), Value: &[]int{i}[0]}
	}
	return g
}

// randomAddr returns an address from a space so small that prefixes nest and meet.
func randomAddr(rnd *rand.Rand, v6 bool) netip.Addr {
	if v6 {
		a := [16]byte{0: 0xfd, 5: byte(rnd.IntN(4)), 7: byte(rnd.IntN(256)), 15: byte(rnd.IntN(256))}
		return netip.AddrFrom16(a)
	}
	return netip.AddrFrom4([4]byte{10 + byte(rnd.IntN(2)*rnd.IntN(2)), byte(rnd.IntN(4)), byte(rnd.IntN(256)), byte(rnd.IntN(256))})
}

func TestLookupDoesNotAllocate(t *testing.T) {
	var table Table[int]
	table.Replace(routes("10.1.2.0/24", "10.1.3.0/24", "10.0.0.0/8", "fd00::/64"))
	addrs := []netip.Addr{
		netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("10.9.9.9"),
		netip.MustParseAddr("fd00::1"), netip.MustParseAddr("192.0.2.1"),
	}
	if n := testing.AllocsPerRun(100, func() {
		for _, a := range addrs {
			table.Lookup(a)
		}
		table.Lookup4(key(addrs[0]))
		table.Lookup4(key(addrs[3]))
	}); n != 0 {
		t.Errorf("Lookup allocates %v times", n)
	}
}

// TestReadersSeeWholeTables has readers check, while a writer alternates two
// tables, that what they find belongs to one or the other and never to neither.
func TestReadersSeeWholeTables(t *testing.T) {
	a := routes("10.1.0.0/24", "10.1.1.0/24", "10.0.0.0/8", "fd00::/64")
	b := routes("10.1.1.0/25", "10.1.1.128/25", "10.0.0.0/9", "fd00::/48")
	addrs := []netip.Addr{netip.MustParseAddr("10.1.1.5"), netip.MustParseAddr("10.9.9.9"), netip.MustParseAddr("fd00::1")}
	var table Table[int]
	table.Replace(a)

	var writer, readers sync.WaitGroup
	stop := make(chan struct{})
	writer.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				table.Replace(b)
				table.Replace(a)
			}
		}
	})
	for range 3 {
		readers.Go(func() {
			for range 20_000 {
				for _, addr := range addrs {
					if v := table.Lookup(addr); v == nil || (v != a.lookup(addr) && v != b.lookup(addr)) {
						t.Errorf("Lookup(%s) = %v, which is of no table", addr, text(v))
						return
					}
				}
			}
		})
	}
	readers.Wait()
	close(stop)
	writer.Wait()
}
