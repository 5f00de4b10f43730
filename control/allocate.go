package control

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
)

// Compatible reports whether a lease of subnet and v6 fits the network as it is
// configured now: each enabled family has a subnet of the configured length
// between Min and Max, and a family that is not enabled has none.
func Compatible(n Network, subnet, v6 netip.Prefix) bool {
	r4, on4 := n.ipv4()
	r6, on6 := n.ipv6()
	return fits(r4, on4, subnet) && fits(r6, on6, v6)
}

func fits(r subnetRange, enabled bool, p netip.Prefix) bool {
	if !enabled {
		return !p.IsValid()
	}
	return r.holds(p)
}

// AppendTaken appends to taken the subnets of n that an entry of the store takes: those
// of a key that can be read, as far as n contains them. Anything else takes nothing,
// so that no junk, and no lease of an earlier network, can keep nodes from a subnet.
//
// If the key is good and the value cannot be read, the subnet stays taken: its owner
// may be alive and put the value right. That holds for a key of one subnet only. Under a key
// that covers several, such a value takes nothing.
func AppendTaken(taken []netip.Prefix, n Network, key string, value []byte) []netip.Prefix {
	v4, v6, err := ParseKey(key)
	if err != nil {
		return taken
	}
	for _, p := range [...]netip.Prefix{v4, v6} {
		if !n.Contains(p) {
			continue
		}
		if r, _ := n.family(p); p.Bits() < r.length { // rare: to parse every value would be most of the work
			if _, err := ParseLease(key, value); err != nil {
				continue
			}
		}
		taken = append(taken, p)
	}
	return taken
}

// AppendHeld appends to held the subnets of n that an entry of the store gives somebody a
// right to: those of a lease of its backend type, as far as n contains them. The RIB uses no other
// entry, so that no other can cost a node the subnet that it has; to choose one, see AppendTaken.
func AppendHeld(held []netip.Prefix, n Network, key string, value []byte) []netip.Prefix {
	l, err := ParseLease(key, value)
	if err != nil || l.BackendType != n.Backend.leaseType() {
		return held
	}
	for _, p := range [...]netip.Prefix{l.Subnet, l.IPv6Subnet} {
		if n.Contains(p) {
			held = append(held, p)
		}
	}
	return held
}

// Allocate picks for each enabled family the first of the node's previous subnets that
// fits the network as it is now and overlaps nothing in taken, else one of all the free
// subnets, each as likely as any other; free are those between Min and Max that overlap
// nothing in taken. A subnet that holds what the node needs of its underlay is not picked, and one in
// an on-link prefix of the underlay only if no other is free: that may have hosts nobody here knows. So it is with
// one in Node.Avoid.
// The prefixes in Previous and taken may be of any family and length: those that
// Network.Contains refuses are skipped, because the RIB refuses them too. pick returns a
// number in [0, n), as rand.IntN does. ErrNoSubnet: a family has none free.
//
// Choosing among all of them, not among the first hundred as flannel does, is what
// keeps concurrent nodes from choosing the same one (facts: 7 conflicts of 1000
// against 2543). The cost is O(n log n) in taken, whatever the size of the network.
func Allocate(n Network, node Node, taken []netip.Prefix, pick func(n int) int) (subnet, v6 netip.Prefix, err error) {
	if r, on := n.ipv4(); on {
		if subnet, err = r.allocate(node, taken, pick); err != nil {
			return netip.Prefix{}, netip.Prefix{}, err
		}
	}
	if r, on := n.ipv6(); on {
		if v6, err = r.allocate(node, taken, pick); err != nil {
			return netip.Prefix{}, netip.Prefix{}, err
		}
	}
	return subnet, v6, nil
}

// resume returns the first of the node's previous subnets that is free, or no prefix.
func (r subnetRange) resume(node Node, taken []netip.Prefix) netip.Prefix {
	for _, p := range node.Previous {
		if r.holds(p) && node.CheckSubnets(p) == nil && !slices.ContainsFunc(taken, func(q netip.Prefix) bool { return r.contains(q) && p.Overlaps(q) }) {
			return p
		}
	}
	return netip.Prefix{}
}

// span is a run of subnets by number, both ends included.
type span struct{ first, last uint64 }

func (r subnetRange) allocate(node Node, taken []netip.Prefix, pick func(n int) int) (netip.Prefix, error) {
	if p := r.resume(node, taken); p.IsValid() {
		return p, nil
	}
	free, err := r.freeFor(node, taken)
	if err != nil {
		return netip.Prefix{}, err
	}
	var total uint64
	for _, s := range free {
		total += s.last - s.first + 1
	}
	i := uint64(pick(int(min(total, math.MaxInt)))) // 2^62 fits unless int has 32 bits
	for _, s := range free {
		if size := s.last - s.first + 1; i >= size {
			i -= size
			continue
		}
		return r.subnetAt(s.first + i), nil
	}
	return netip.Prefix{}, ErrNoSubnet
}

// freeFor returns what is free for a node on that underlay: if possible, none of it in an on-link
// prefix, nor in what the node is to avoid. ErrNoSubnet: nothing is free.
func (r subnetRange) freeFor(node Node, taken []netip.Prefix) ([]span, error) {
	u := &node.Underlay
	needed := u.held(r.length)
	taken = slices.Concat(taken, needed)
	for _, avoid := range [...][]netip.Prefix{slices.Concat(u.shared(), node.Avoid), u.shared(), node.Avoid, nil} {
		if free := r.free(slices.Concat(taken, avoid)); len(free) > 0 {
			return free, nil
		}
	}
	if len(r.free(taken[:len(taken)-len(needed)])) > 0 {
		return nil, fmt.Errorf("%w: every subnet that is left holds an address that this host needs of its underlay, as %s: other bounds or a longer SubnetLen leave more", ErrNoSubnet, u.text())
	}
	return nil, ErrNoSubnet
}

// free returns the gaps between what is taken, ascending.
func (r subnetRange) free(taken []netip.Prefix) []span {
	used := make([]span, 0, len(taken))
	for _, p := range taken {
		if !r.contains(p) {
			continue
		}
		p = p.Masked()
		s := span{first: r.index(p.Addr())}
		s.last = s.first
		if p.Bits() < r.length {
			s.last += 1<<(r.length-p.Bits()) - 1
		}
		used = append(used, s)
	}
	slices.SortFunc(used, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	next, end := r.indexRange()
	var gaps []span
	for _, s := range used {
		if s.first > end {
			break
		}
		if s.first > next {
			gaps = append(gaps, span{next, s.first - 1})
		}
		next = max(next, s.last+1)
	}
	if next <= end {
		gaps = append(gaps, span{next, end})
	}
	return gaps
}

// Resumes reports whether a node can have its previous subnets again, one of each family.
func Resumes(n Network, node Node, taken []netip.Prefix) bool {
	r4, on4 := n.ipv4()
	r6, on6 := n.ipv6()
	return (!on4 || r4.resume(node, taken).IsValid()) && (!on6 || r6.resume(node, taken).IsValid())
}
