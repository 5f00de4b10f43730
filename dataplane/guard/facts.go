package guard

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/nft"
)

// facts are, besides Config, the input of the rules: what is wanted, or what was wanted before together with that.
type facts struct {
	kind
	kernel   bool            // the kernel forwards, else this process
	own      []netip.Prefix  // subnets and addresses of this host
	networks []netip.Prefix  // of the overlay
	sets     map[string]bool // the names of the sets that exist
	indices  []int           // the indices of the overlay devices that exist now
	others   vnis
	vrf      bool // there is a VRF, by which the datagrams of the kernel may leave first
	ipvs     bool // IPVS may send packets on that are then translated once more
	settling bool // packets may come without encapsulation for now
	shut     bool // nothing else is known yet
}

// basis is all that the rules follow from. It can be compared.
type basis struct {
	cfg   Config
	facts facts
}

func (c Config) basisOf(f facts) basis {
	c.Log, c.Off, c.Synced = nil, nil, nil
	return basis{c, f}
}

// kind decides which sets the rules use.
type kind struct {
	// mixed4 and mixed6 say that the networks of a family hold addresses of the underlay. Then only leased subnets belong to
	// the overlay.
	mixed4, mixed6 bool
	// underlay has those addresses and prefixes. A lease may hold one of them if that has a more specific route.
	underlay []netip.Prefix
}

func (k kind) same(o kind) bool {
	return k.mixed4 == o.mixed4 && k.mixed6 == o.mixed6 && slices.Equal(k.underlay, o.underlay)
}

// mixed reports whether, in a family, only leased subnets belong to the overlay.
func (k kind) mixed(f family) bool {
	if f == ipv6 {
		return k.mixed6
	}
	return k.mixed4
}

// isWide reports whether a lease holds an address of the underlay. Then not all of its addresses belong to the overlay.
func (k kind) isWide(lease netip.Prefix) bool {
	return slices.ContainsFunc(k.underlay, func(u netip.Prefix) bool { return lease.Bits() <= u.Bits() && lease.Contains(u.Addr()) })
}

// pairSet names the set of pairs of an outer and an inner source that belong together. The inner source is a prefix of that length.
// The set for single addresses of the outer family also pairs each address of a peer with the peer's addresses.
func pairSet(outer, inner family, bits int) string {
	return fmt.Sprintf("pair%s%s_%d", digit(outer), digits(inner, bits), bits)
}

// leaseSet names the set of the subnets of peers that have that prefix length.
func leaseSet(f family, bits int) string { return fmt.Sprintf("lease%s_%d", digit(f), bits) }

// wideSet names the set of those subnets that hold an address of the underlay. Packets of peers may have sources in them, and so may other packets.
func wideSet(f family, bits int) string { return fmt.Sprintf("wide%s_%d", digit(f), bits) }

// setOf returns the set with that name as the kernel keeps it.
func setOf(name string) nft.Set {
	s := nft.Set{Name: name}
	for _, c := range name {
		switch c {
		case '_':
			return s
		case '4':
			s.Keys = append(s.Keys, nft.KeyIPv4)
		case '6':
			s.Keys = append(s.Keys, nft.KeyIPv6)
		}
	}
	return s
}

// factsOf returns what w says about this host.
func (c *Config) factsOf(w dataplane.Wanted, kernel bool) facts {
	f := facts{networks: w.Networks, kernel: kernel}
	for _, p := range slices.Concat(w.Subnets, w.Addrs) {
		if !slices.ContainsFunc(f.own, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) }) {
			f.own = append(f.own, p.Masked())
		}
	}
	over := func(u family) bool {
		return slices.ContainsFunc(ofFamily(w.Networks, u), func(n netip.Prefix) bool { return slices.ContainsFunc(w.Underlay, n.Overlaps) })
	}
	f.mixed4, f.mixed6 = over(ipv4), over(ipv6)
	for _, u := range w.Underlay {
		if f.mixed(familyOf(u.Addr())) {
			f.underlay = append(f.underlay, u)
		}
	}
	return f
}

// hostSet names the set that pairs each address of a peer with itself.
func hostSet(f family) string { return pairSet(f, f, bitsOf(f)) }

// isPeer is the condition that an address is an address of a peer, or with not that it is not.
func isPeer(f family, d field, not bool) cond { return in(hostSet(f), not, bitsOf(f), d, d) }

// eachKey calls do for each key that a peer has in a set. The peer's packets may come from either of its addresses. Their inner source
// may be one of these or in one of its subnets.
func (c *Config) eachKey(p *dataplane.Peer, k kind, do func(set, key string)) {
	outer := []netip.Addr{p.Addr, p.Source}
	if !p.Source.IsValid() || p.Source == p.Addr {
		outer = outer[:1]
	}
	for _, o := range outer {
		a := familyOf(o)
		key := string(o.AsSlice())
		for _, s := range p.Subnets {
			do(pairSet(a, familyOf(s.Addr()), s.Bits()), key+prefixKey(s))
		}
		for _, host := range outer {
			do(pairSet(a, a, bitsOf(a)), key+string(host.AsSlice()))
		}
	}
	c.eachOrigin(p, outer, do)
	for _, s := range p.Subnets {
		if k.mixed(familyOf(s.Addr())) || c.Direct || c.Check == dataplane.SourceInner {
			set := leaseSet
			if k.isWide(s) {
				set = wideSet
			}
			do(set(familyOf(s.Addr()), s.Bits()), string(s.Addr().AsSlice()))
		}
	}
}

// and returns f and g together: the rules then admit what either of them admits.
func (f facts) and(g facts) facts {
	f.own, f.networks = join(f.own, g.own), join(f.networks, g.networks)
	f.mixed4, f.mixed6 = f.mixed4 || g.mixed4, f.mixed6 || g.mixed6
	f.underlay = join(f.underlay, g.underlay)
	return f
}

func join(a, b []netip.Prefix) []netip.Prefix {
	all := slices.Clone(a)
	for _, p := range b {
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

// ofFamily returns the prefixes of one family.
func ofFamily(list []netip.Prefix, f family) (of []netip.Prefix) {
	for _, p := range list {
		if familyOf(p.Addr()) == f {
			of = append(of, p)
		}
	}
	return of
}

// lengths returns the prefix lengths for which there is a set of that kind, in ascending order; single addresses come last.
func (f facts) lengths(name func(bits int) string, max int) (all []int) {
	for bits := range max + 1 {
		if f.sets[name(bits)] {
			all = append(all, bits)
		}
	}
	return all
}

// subnetLengths is lengths without that of single addresses.
func (f facts) subnetLengths(name func(bits int) string, of family) []int {
	return f.lengths(name, bitsOf(of)-1)
}
