package control

import (
	"net/netip"
	"slices"
	"strings"
)

// Lengths are the prefix lengths that leases may have besides that of the network config: those of configs that were in
// force before, under which nodes have got leases that they still have. The zero value has none.
type Lengths [2][129]bool // by family and length

// Add adds the lengths of some subnets. Invalid ones are skipped.
func (l *Lengths) Add(subnets ...netip.Prefix) {
	for _, p := range subnets {
		if p.IsValid() {
			l[familyIndex(p.Addr())][p.Bits()] = true
		}
	}
}

// AddNetwork adds those of a config that was in force.
func (l *Lengths) AddNetwork(n Network) {
	for _, p := range n.Prefixes() {
		if r, _ := n.family(p); r.length > 0 {
			l.Add(netip.PrefixFrom(p.Addr(), r.length))
		}
	}
}

// AddAll adds those of another value.
func (l *Lengths) AddAll(other Lengths) {
	for f := range other {
		for bits, has := range other[f] {
			l[f][bits] = l[f][bits] || has
		}
	}
}

// has reports whether p has one of them.
func (l *Lengths) has(p netip.Prefix) bool { return l[familyIndex(p.Addr())][p.Bits()] }

// String returns the lengths as a text that ParseLengths reads: 0.0.0.0/24 ::/64.
func (l Lengths) String() string {
	var all []string
	for f, zero := range [...]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		for bits, has := range l[f] {
			if has {
				all = append(all, netip.PrefixFrom(zero, bits).String())
			}
		}
	}
	return strings.Join(all, " ")
}

// ParseLengths reads what String returns. What is not a length is skipped.
func ParseLengths(text string) (l Lengths) {
	for word := range strings.FieldsSeq(text) {
		if p, err := netip.ParsePrefix(word); err == nil && !p.Addr().Is4In6() {
			l.Add(p)
		}
	}
	return l
}

// hasLength reports whether p, a subnet of r's family, is as long as a lease is now, or was. Whoever may write one lease
// could else have half of the network by it. If others give the subnets out, or known is nil, any length is right.
func (r subnetRange) hasLength(p netip.Prefix, known *Lengths) bool {
	return r.length == 0 || known == nil || p.Bits() == r.length || known.has(p)
}

// Rightful returns those of the subnets that a lease may have by their lengths: see Lengths. A lease of another one is not
// used by anybody, and so it takes nothing.
func (n Network) Rightful(subnets []netip.Prefix, known *Lengths) []netip.Prefix {
	return slices.DeleteFunc(subnets, func(p netip.Prefix) bool {
		r, _ := n.family(p)
		return !r.hasLength(p, known)
	})
}

// Oversized divides what is taken: rest nobody else can have, and the subnets in oversized are larger than a lease can be
// now. Nobody uses them, unless there was a config that is not known here.
func (n Network) Oversized(taken []netip.Prefix, known *Lengths) (rest, oversized []netip.Prefix) {
	rest = taken[:0]
	for _, p := range taken {
		if r, _ := n.family(p); r.contains(p) && p.Bits() < r.length && !r.hasLength(p, known) {
			oversized = append(oversized, p)
		} else {
			rest = append(rest, p)
		}
	}
	return rest, oversized
}
