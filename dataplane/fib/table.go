// Package fib is the forwarding table of the userspace dataplane: overlay prefix
// to tunnel, longest match, read by every worker for every packet without a lock.
package fib

import (
	"net/netip"
	"sync/atomic"
)

// Route says that all addresses in Prefix are reached by Value.
type Route[T any] struct {
	Prefix netip.Prefix // any length, IPv4 or IPv6; bits behind the length are ignored
	Value  *T           // not nil; not changed after Replace
}

// Table maps an address to the value of the longest prefix that holds it. The zero
// value is ready to use and empty. A Table must not be copied.
//
// Concurrency: any number of goroutines may call Lookup and Replace at the same
// time. Lookup is wait-free: it never waits for a Replace or for another
// Lookup, and sees all of one Replace or nothing of it. What a Lookup returned
// stays valid for as long as the caller holds it, also when the route is gone.
type Table[T any] struct {
	current atomic.Pointer[snapshot[T]]
}

// Lookup returns the value of the longest prefix that holds addr, or nil. It does
// not allocate. An IPv4-mapped IPv6 address is an IPv6 address here and never
// matches an IPv4 prefix, and a zone is ignored.
func (t *Table[T]) Lookup(addr netip.Addr) *T {
	s := t.current.Load()
	if s == nil {
		return nil
	}
	if addr.Is4() {
		i, slots := uint(key(addr)>>(s.shift&31)-s.base), s.slots
		if i < uint(len(slots)) && slots[i] != nil {
			return slots[i]
		}
	}
	return s.lookupRest(addr)
}

// Lookup4 is Lookup of an IPv4 address as a number, its first byte in the highest bits.
func (t *Table[T]) Lookup4(addr uint32) *T {
	if s := t.current.Load(); s != nil {
		i, slots := uint(addr>>(s.shift&31)-s.base), s.slots
		if i < uint(len(slots)) && slots[i] != nil {
			return slots[i]
		}
	}
	return t.Lookup(netip.AddrFrom4([4]byte{byte(addr >> 24), byte(addr >> 16), byte(addr >> 8), byte(addr)}))
}

// Replace makes routes the whole table, in one atomic store. Of two routes with
// the same prefix the later one holds. An invalid prefix is ignored. The slice is
// not kept; the values are.
func (t *Table[T]) Replace(routes []Route[T]) {
	t.current.Store(newSnapshot(routes))
}
