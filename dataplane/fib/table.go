// Package fib is the forwarding table of the userspace dataplane: overlay prefix
// to tunnel, longest match, read by every worker for every packet without a lock.
package fib

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"

	"github.com/gaissmai/bart"
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

// snapshot is one immutable state of a Table.
type snapshot[T any] struct {
	// slots are the values of consecutive IPv4 prefixes of one length; the first
	// one is base, an address shifted right by shift.
	slots []*T
	base  uint32
	shift uint8
	// rest holds every other prefix; nil where there is none.
	rest *bart.Fast[*T]
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
		a := addr.As4()
		if i := binary.BigEndian.Uint32(a[:])>>s.shift - s.base; i < uint32(len(s.slots)) {
			return s.slots[i]
		}
	}
	if s.rest == nil {
		return nil
	}
	v, _ := s.rest.Lookup(addr)
	return v
}

// Replace makes routes the whole table, in one atomic store. Of two routes with
// the same prefix the later one holds. An invalid prefix is ignored. The slice is
// not kept; the values are.
func (t *Table[T]) Replace(routes []Route[T]) {
	s := &snapshot[T]{rest: new(bart.Fast[*T])}
	for _, r := range routes {
		if r.Prefix.IsValid() {
			s.rest.Insert(r.Prefix.Masked(), r.Value)
		}
	}
	t.current.Store(s)
}
