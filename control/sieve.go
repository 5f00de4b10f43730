package control

import (
	"cmp"
	"net/netip"
	"slices"
)

// MaxLeases bounds the leases of one store that are remembered: the oldest ones are.
const MaxLeases = 25_000

const (
	maxUseless = 2000 // of them: such that this network cannot use
	maxAlike   = 8    // of them: such that ask for the same subnet
	maxOfNode  = 256  // of them: such that have one public address. A node has one, but others can be written by hand
)

// Sieve chooses the leases of a store that are remembered, and counts them. Whoever may write to the store can make as many leases as
// they like: those outside the network, and many for one subnet or of one node, take no place that a lease needs which can be used. The
// network and the lengths of a Sieve do not change.
type Sieve struct {
	network Network  // zero: not known, and so any lease can be used
	lengths *Lengths // as in RIB

	leases, useless int
	alike           map[netip.Prefix]int // how many leases ask for a subnet
	ofNode          map[netip.Addr]int   // how many of them have a public address
}

// NewSieve returns a Sieve that has counted nothing. Of a network that is not known n is zero; for lengths see RIB.
func NewSieve(n Network, lengths *Lengths) *Sieve {
	return &Sieve{network: n, lengths: lengths, alike: map[netip.Prefix]int{}, ofNode: map[netip.Addr]int{}}
}

// usable returns the subnets of a lease that the network can use: none if it does not say where its node is.
func (s *Sieve) usable(l *Lease) (subnets []netip.Prefix) {
	if !l.Identity().IsValid() || (s.network != Network{}) && l.isReservation() {
		return nil
	}
	for _, p := range [...]netip.Prefix{l.Subnet, l.IPv6Subnet} {
		r, on := s.network.family(p)
		if p.IsValid() && (s.network == Network{} || on && r.contains(p) && r.hasLength(p, s.lengths)) {
			subnets = append(subnets, p)
		}
	}
	return subnets
}

// mayHave reports whether a node of this network may have the lease: one of a family that the network lacks takes no place of that node's own.
func (s *Sieve) mayHave(l *Lease) bool {
	n := s.network
	return n == Network{} || (!l.Subnet.IsValid() || n.EnableIPv4) && (!l.IPv6Subnet.IsValid() || n.EnableIPv6)
}

// HasRoom reports whether a further lease is to be remembered.
func (s *Sieve) HasRoom(l *Lease) bool {
	subnets := s.usable(l)
	full := s.leases >= MaxLeases || len(subnets) == 0 && s.useless >= maxUseless
	return !full && (!s.mayHave(l) || s.ofNode[l.Identity()] < maxOfNode) && !slices.ContainsFunc(subnets, func(p netip.Prefix) bool { return s.alike[p] >= maxAlike })
}

// Add counts a lease that is remembered.
func (s *Sieve) Add(l *Lease) { s.count(l, 1) }

// Remove takes a lease out again.
func (s *Sieve) Remove(l *Lease) { s.count(l, -1) }

func (s *Sieve) count(l *Lease, n int) {
	subnets := s.usable(l)
	s.leases += n
	if len(subnets) == 0 {
		s.useless += n
		return
	}
	if s.mayHave(l) {
		add(s.ofNode, l.Identity(), n)
	}
	for _, p := range subnets {
		add(s.alike, p, n)
	}
}

func add[K comparable](counts map[K]int, k K, n int) {
	if counts[k] += n; counts[k] == 0 {
		delete(counts, k)
	}
}

// clear forgets all leases.
func (s *Sieve) clear() {
	s.leases, s.useless = 0, 0
	clear(s.alike)
	clear(s.ofNode)
}

// Choose returns those of all leases that are to be remembered: the known ones, and the oldest of the others. It returns them in the
// order in which they stand, and overwrites all. What the Sieve has counted before is forgotten; what is chosen is not counted yet.
func (s *Sieve) Choose(all []Lease, known func(key string) bool) []Lease {
	defer s.clear()
	s.clear()
	if s.addAll(all) {
		return all
	}
	s.clear()
	keep := make([]bool, len(all))
	order := make([]int, 0, len(all)) // of those that are not known
	for i := range all {
		if keep[i] = known(all[i].Key()); keep[i] {
			s.Add(&all[i])
		} else {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(i, j int) int {
		return cmp.Or(cmp.Compare(all[i].CreateRevision, all[j].CreateRevision), cmp.Compare(i, j))
	})
	for _, i := range order {
		if keep[i] = s.HasRoom(&all[i]); keep[i] {
			s.Add(&all[i])
		}
	}
	chosen := all[:0]
	for i := range all {
		if keep[i] {
			chosen = append(chosen, all[i])
		}
	}
	clear(all[len(chosen):])
	return chosen
}

// addAll counts leases until there is no room for one, and reports whether it has counted all.
func (s *Sieve) addAll(leases []Lease) bool {
	for i := range leases {
		if !s.HasRoom(&leases[i]) {
			return false
		}
		s.Add(&leases[i])
	}
	return true
}
