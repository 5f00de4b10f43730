package bench

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/gaissmai/bart"

	"github.com/overlayd/overlayd/dataplane/fib"
)

// vtep stands for what the dataplane keeps per peer.
type vtep struct{ id uint32 }

// leases returns n consecutive IPv4 /24 subnets, as a network hands them out, in
// random order.
func leases(n int) []fib.Route[vtep] {
	routes := make([]fib.Route[vtep], n)
	for i, j := range newRand().Perm(n) {
		routes[i] = fib.Route[vtep]{Prefix: netip.PrefixFrom(subnet(uint32(j), 0), 24), Value: &vtep{uint32(j)}}
	}
	return routes
}

// numAddrs is a power of two, so that going round costs no division.
const numAddrs = 4096

// destinations returns random addresses inside the n subnets of leases.
func destinations(n int) *[numAddrs]netip.Addr {
	rnd := newRand()
	addrs := new([numAddrs]netip.Addr)
	for i := range addrs {
		addrs[i] = subnet(rnd.Uint32N(uint32(n)), rnd.Uint32N(256))
	}
	return addrs
}

// subnet returns the address host of the i-th /24 from 10.0.0.0 on.
func subnet(i, host uint32) netip.Addr {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], 10<<24+i<<8+host)
	return netip.AddrFrom4(a)
}

func newRand() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

// lockedMap is the table that one would write first: a map by masked address
// under a lock.
type lockedMap struct {
	mu sync.RWMutex
	m  map[netip.Addr]*vtep
}

func (l *lockedMap) lookup(addr netip.Addr) *vtep {
	a := addr.As4()
	a[3] = 0
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.m[netip.AddrFrom4(a)]
}

var sizes = []struct {
	name string
	n    int
}{{"1", 1}, {"1k", 1000}, {"100k", 100_000}}

func BenchmarkLookup(b *testing.B) {
	for _, size := range sizes {
		routes, addrs := leases(size.n), destinations(size.n)
		b.Run("fib/"+size.name, func(b *testing.B) {
			var t fib.Table[vtep]
			t.Replace(routes)
			benchFIB(b, &t, addrs)
		})
		b.Run("bart/"+size.name, func(b *testing.B) { benchBart(b, routes, addrs) })
		b.Run("lockedmap/"+size.name, func(b *testing.B) { benchLockedMap(b, routes, addrs) })
	}
}

// The three loops differ in the call only. It is written out in each, because a
// call through a function value would cost as much as a lookup.

func benchFIB(b *testing.B, t *fib.Table[vtep], addrs *[numAddrs]netip.Addr) {
	b.ReportAllocs()
	b.ResetTimer()
	misses := 0
	for i := range b.N {
		if t.Lookup(addrs[uint(i)%numAddrs]) == nil {
			misses++
		}
	}
	noMisses(b, misses)
}

func benchBart(b *testing.B, routes []fib.Route[vtep], addrs *[numAddrs]netip.Addr) {
	var t bart.Fast[*vtep]
	for _, r := range routes {
		t.Insert(r.Prefix, r.Value)
	}
	b.ReportAllocs()
	b.ResetTimer()
	misses := 0
	for i := range b.N {
		if _, ok := t.Lookup(addrs[uint(i)%numAddrs]); !ok {
			misses++
		}
	}
	noMisses(b, misses)
}

func benchLockedMap(b *testing.B, routes []fib.Route[vtep], addrs *[numAddrs]netip.Addr) {
	l := lockedMap{m: make(map[netip.Addr]*vtep)}
	for _, r := range routes {
		l.m[r.Prefix.Addr()] = r.Value
	}
	b.ReportAllocs()
	b.ResetTimer()
	misses := 0
	for i := range b.N {
		if l.lookup(addrs[uint(i)%numAddrs]) == nil {
			misses++
		}
	}
	noMisses(b, misses)
}

func noMisses(b *testing.B, misses int) {
	b.Helper()
	if misses > 0 {
		b.Fatalf("%d lookups found nothing", misses)
	}
}

// BenchmarkLookupWhileReplaced is BenchmarkLookup/fib while a second goroutine
// replaces the whole table 1000 times a second.
func BenchmarkLookupWhileReplaced(b *testing.B) {
	for _, size := range sizes[:2] {
		b.Run("fib/"+size.name, func(b *testing.B) {
			routes := leases(size.n)
			var t fib.Table[vtep]
			t.Replace(routes)
			stop, done := make(chan struct{}), make(chan int)
			go func() { done <- replaceEvery(time.Millisecond, &t, routes, stop) }()
			start := time.Now()
			benchFIB(b, &t, destinations(size.n))
			elapsed := time.Since(start)
			close(stop)
			b.ReportMetric(float64(<-done)/elapsed.Seconds(), "replace/s")
		})
	}
}

// replaceEvery replaces t once in every period d until stop closes and returns how
// often it did. Periods that a busy machine made it miss are made up for.
func replaceEvery(d time.Duration, t *fib.Table[vtep], routes []fib.Route[vtep], stop <-chan struct{}) (n int) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	start := time.Now()
	for {
		select {
		case <-stop:
			return n
		case now := <-tick.C:
			for ; n < int(now.Sub(start)/d); n++ {
				t.Replace(routes)
			}
		}
	}
}

// BenchmarkReplace is what a change of the peers costs the writer.
func BenchmarkReplace(b *testing.B) {
	for _, size := range sizes {
		b.Run("fib/"+size.name, func(b *testing.B) {
			routes := leases(size.n)
			var t fib.Table[vtep]
			b.ReportAllocs()
			for b.Loop() {
				t.Replace(routes)
			}
		})
	}
}
