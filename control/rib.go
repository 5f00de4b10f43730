package control

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/dataplane"
)

// RIB is the table of all leases in the store, the node's own one included. It
// does no I/O, and is not safe for concurrent use.
type RIB struct {
	network Network
	// Underlay is what this node needs: Peers refuses a lease that takes it away.
	Underlay Underlay

	leases map[string]*ribLease // by key
	bad    map[string]BadLease  // unreadable now, by key; leases may hold what was read before
	kept   int                  // leases that are kept though the store has lost them

	sharedMACs bool             // the dataplane knows VTEPs by their addresses: their MACs may be alike
	rivals     []rival          // of the last call of Peers
	last       []dataplane.Peer // what it returned
	limits     []Rejection      // see Limits
}

// ribLease is a lease with its key, which is expensive to build.
type ribLease struct {
	Lease
	key  string
	kept bool // see RIB.keep
}

// Rejection says why a lease, or one family of it, is not used.
type Rejection struct {
	Key    string
	Subnet netip.Prefix // of the family; of a lease that is refused as a whole, its IPv4 one if it has that
	Node   netip.Addr   // Lease.Identity
	Err    error        // names the field and the value; see Reason
}

// NewRIB returns an empty table for the leases of n.
func NewRIB(n Network) *RIB {
	return &RIB{network: n, leases: map[string]*ribLease{}, bad: map[string]BadLease{}}
}

// Apply takes u over and reports whether that changed anything that Peers
// depends on. What was known under a key that is now unreadable stays: one bad
// write must not cut off a node that works. In an Update that is no Reset a
// deleted key is gone even if Leases names it too.
//
// Where a Reset lacks more than half of all leases, or has them as new entries, those that it
// lacks are kept: that is a store that has lost its data, and whose nodes are about to register
// again. The follower drops them when they have had time for that.
func (r *RIB) Apply(u Update) (changed bool) {
	old := r.leases
	if u.Reset {
		r.leases = make(map[string]*ribLease, len(u.Leases))
		clear(r.bad)
	}
	for _, b := range u.Bad {
		r.bad[b.Key] = b
		if known, ok := old[b.Key]; ok {
			r.back(known, u)
			r.leases[b.Key] = known
		}
	}
	again := 0                             // entries that were written again
	all := make([]ribLease, len(u.Leases)) // one allocation for all
	for i, l := range u.Leases {
		key := l.Key()
		delete(r.bad, key)
		known, ok := old[key]
		if !ok || !sameLease(known.Lease, l) {
			changed = true
		}
		if ok {
			r.back(known, u)
			if known.CreateRevision != l.CreateRevision {
				again++
			}
		}
		all[i] = ribLease{Lease: l, key: key}
		r.leases[key] = &all[i]
	}
	if u.Reset {
		r.keep(old, again)
		return changed || len(r.leases) != len(old)
	}
	for _, key := range u.Deleted {
		delete(r.bad, key)
		if known, ok := r.leases[key]; ok {
			r.forget(known)
			changed = true
		}
	}
	return changed
}

// keep takes over from before a Reset what was kept already, and what it lacks if that and
// what was written again are more than half.
func (r *RIB) keep(old map[string]*ribLease, again int) {
	var lacking []*ribLease
	r.kept = 0
	for key, rec := range old {
		switch _, ok := r.leases[key]; {
		case ok:
		case rec.kept:
			r.leases[key] = rec
			r.kept++
		default:
			lacking = append(lacking, rec)
		}
	}
	if 2*(len(lacking)+again) <= len(old) {
		return
	}
	for _, rec := range lacking {
		rec.kept = true
		r.leases[rec.key] = rec
		r.kept++
	}
}

// back notes that u, whose keep is yet to come in a Reset, has the key of rec again.
func (r *RIB) back(rec *ribLease, u Update) {
	if rec.kept && !u.Reset {
		r.kept--
	}
	rec.kept = false
}

func (r *RIB) forget(rec *ribLease) {
	if rec.kept {
		r.kept--
	}
	delete(r.leases, rec.key)
}

// drop forgets the leases that are kept though the store has lost them.
func (r *RIB) drop() {
	for _, rec := range r.leases {
		if rec.kept {
			r.forget(rec)
		}
	}
}

// keptSubnets returns the subnets of the leases that are kept, nil if none are kept.
func (r *RIB) keptSubnets() map[netip.Prefix]struct{} {
	if r.kept == 0 {
		return nil
	}
	subnets := make(map[netip.Prefix]struct{}, r.kept)
	for _, rec := range r.leases {
		if rec.kept {
			subnets[rec.Subnet], subnets[rec.IPv6Subnet] = struct{}{}, struct{}{}
		}
	}
	return subnets
}

// sameLease compares all that a peer is made of; a renewal changes none of it.
func sameLease(a, b Lease) bool {
	a.ModRevision, a.Handle, a.Reserved, a.Expires = b.ModRevision, b.Handle, b.Reserved, b.Expires
	return a == b
}

// Len returns the number of leases, and of entries that are unreadable now.
func (r *RIB) Len() (leases, bad int) { return len(r.leases), len(r.bad) }

// holds reports whether the store's entry of l is there and says what l says.
func (r *RIB) holds(l Lease) bool {
	key := l.Key()
	if _, bad := r.bad[key]; bad {
		return false
	}
	known, ok := r.leases[key]
	if !ok || known.kept {
		return false
	}
	seen := known.Lease
	seen.Facts = l.Facts // of the own node this process alone knows what is right
	seen.CreateRevision, seen.ModRevision, seen.Expires, seen.Reserved = l.CreateRevision, l.ModRevision, l.Expires, l.Reserved
	return seen == l
}

// Peers returns every VTEP other than the node's own with the subnets behind it,
// sorted by address, and why other leases are not used, sorted by key. self has the
// node's VTEPs, and its subnets unless it has no lease now.
//
// Each family of a lease is admitted on its own. Of leases that overlap the oldest holds, so
// that no newcomer takes over what works. Of VTEPs with the same MAC that one holds which has
// derived it from its own address, else the one that the last call has returned, else
// the one of the oldest lease. The same MAC, VNI and public IP in several leases make one Peer.
func (r *RIB) Peers(self Lease) ([]dataplane.Peer, []Rejection) {
	a := newAdmission(r.network, &r.Underlay, self)
	a.shared = r.sharedMACs || !r.network.Backend.IsVXLAN()
	claims := make([]claim, 0, len(r.leases))
	for _, rec := range r.leases {
		if a.isOwn(rec) {
			continue
		}
		claims = a.appendClaims(claims, rec)
	}
	order := byAge(claims)
	admitted := order[:0]
	for _, i := range order {
		if err := a.admit(&claims[i]); err != nil {
			a.reject(claims[i].rec, claims[i].subnet, err)
			continue
		}
		admitted = append(admitted, i)
	}
	if !a.shared {
		admitted = a.admitMACs(claims, admitted, r.last)
	}
	l := limits{a: a, leases: r.leases}
	l.apply(claims, admitted)
	r.limits = l.found
	for _, list := range [...][]Rejection{a.rejected, r.limits} {
		slices.SortStableFunc(list, func(x, y Rejection) int { return cmp.Compare(x.Key, y.Key) })
	}
	r.last, r.rivals = mergePeers(claims, admitted), a.rivals
	return r.last, a.rejected
}

// Limits returns what does not work with the peers that the last Peers returned, sorted by key.
func (r *RIB) Limits() []Rejection { return r.limits }

// byAge returns the numbers of the claims, oldest first, and last those of kept leases, which
// stand back behind whatever the store has. Numbers are sorted and not
// claims, whose pointers would cost a write barrier for each exchange.
func byAge(claims []claim) []int32 {
	order := make([]int32, len(claims))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(i, j int32) int {
		x, y := &claims[i], &claims[j]
		if x.kept != y.kept {
			if x.kept {
				return 1
			}
			return -1
		}
		if c := cmp.Compare(x.created, y.created); c != 0 {
			return c
		}
		return cmp.Compare(x.rec.key, y.rec.key)
	})
	return order
}

// mergePeers makes one Peer of the admitted claims of each VTEP.
func mergePeers(claims []claim, admitted []int32) []dataplane.Peer {
	slices.SortFunc(admitted, func(i, j int32) int {
		x, y := &claims[i], &claims[j]
		if c := x.vtep.Addr.Compare(y.vtep.Addr); c != 0 {
			return c
		}
		return cmp.Or(slices.Compare(x.vtep.MAC[:], y.vtep.MAC[:]), x.subnet.Addr().Compare(y.subnet.Addr()))
	})
	subnets := make([]netip.Prefix, len(admitted)) // one allocation for all peers
	peers := make([]dataplane.Peer, 0, len(admitted))
	for i, number := range admitted {
		c := &claims[number]
		subnets[i] = c.subnet
		if n := len(peers); n > 0 && peers[n-1].VTEP == c.vtep {
			first := i - len(peers[n-1].Subnets)
			peers[n-1].Subnets = subnets[first : i+1 : i+1]
			if c.source.IsValid() {
				peers[n-1].Source = c.source
			}
			continue
		}
		peers = append(peers, dataplane.Peer{VTEP: c.vtep, Source: c.source, Subnets: subnets[i : i+1 : i+1]})
	}
	return peers
}
