package control

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// RIB is the table of all leases in the store, the node's own one included. It
// does no I/O, and is not safe for concurrent use.
type RIB struct {
	network Network
	// Underlay is what this node needs: Peers refuses a lease that takes it away.
	Underlay Underlay
	// Lengths are those that a lease may have besides the network's; nil: any.
	Lengths *Lengths
	// SharedMACs: the dataplane knows VTEPs by their addresses, and so their MACs may be alike.
	SharedMACs bool

	leases  map[string]*ribLease // by key
	live    map[string]*ribLease // those of them that are not on the shelf
	shelf   shelf
	calls   uint32             // of Peers, and how often it began again
	public  map[netip.Addr]int // how many leases publish an address; nil: nobody has asked yet
	bad     badEntries         // unreadable now; leases may hold what was read before
	kept    int                // leases that are kept though the store has lost them
	doubted int                // further ones that are used until Resolve
	newest  int64              // the highest CreateRevision that the store has shown
	loss    loss               // the leases that went lately
	older   map[string]Lease   // see RIB.staysBefore

	rivals  []Rival          // of the last call of Peers
	ownMACs [2]encap.MAC     // of the node then, by family
	owned   map[string]bool  // keys of the leases that the node had in calls of Peers
	last    []dataplane.Peer // what it returned
	names   []string         // see Names
	limits  []Rejection      // see Limits
	refused int              // see Refused
	omitted int              // see Update.Omitted
}

// ribLease is a lease with its key, which is expensive to build. The lease is shared with whoever made the Update: nobody changes it.
type ribLease struct {
	*Lease
	key     string
	kept    bool // see RIB.keep
	doubted bool // kept, but only until Resolve

	shelved  bool         // see shelf
	refusals int8         // of its families, in the last call of Peers that judged it
	open     int8         // its families that this call may admit yet, or that the next one may
	behind   [2]*ribLease // by family: the older lease that it overlaps, if that alone is why it is refused
	holds    [2]uint32    // by family: RIB.calls when it had its subnet before whatever is younger
}

// Rejection says why a lease, or one family of it, is not used.
type Rejection struct {
	Key    string
	Subnet netip.Prefix // of the family; of a lease that is refused as a whole, its IPv4 one if it has that
	Node   netip.Addr   // Lease.Identity
	Name   string       // NodeFacts.Name
	Err    error        // names the field and the value; see Reason

	rec *ribLease
}

// NewRIB returns an empty table for the leases of n.
func NewRIB(n Network) *RIB {
	r := &RIB{network: n, bad: newBadEntries(), owned: map[string]bool{}}
	r.clear()
	return r
}

// clear forgets all leases.
func (r *RIB) clear() {
	judged := r.shelf
	r.leases, r.live, r.public, r.shelf = map[string]*ribLease{}, map[string]*ribLease{}, nil, newShelf()
	r.shelf.self, r.shelf.underlay, r.shelf.lengths = judged.self, judged.underlay, judged.lengths
}

// put makes rec the lease of its key, and has it judged.
func (r *RIB) put(rec *ribLease) {
	switch was := r.leases[rec.key]; was {
	case rec:
		r.unshelve(rec)
		return
	case nil:
	default:
		r.drop(was)
	}
	rec.shelved, rec.behind = false, [2]*ribLease{}
	r.leases[rec.key], r.live[rec.key] = rec, rec
	r.countPublic(rec, 1)
}

// drop forgets a lease.
func (r *RIB) drop(rec *ribLease) {
	if r.leases[rec.key] != rec {
		return
	}
	r.unshelve(rec)
	delete(r.leases, rec.key)
	delete(r.live, rec.key)
	r.countPublic(rec, -1)
}

// countPublic counts the addresses that a lease publishes.
func (r *RIB) countPublic(rec *ribLease, n int) {
	if r.public == nil {
		return
	}
	for _, ip := range [...]netip.Addr{rec.PublicIP, rec.PublicIPv6} {
		if r.public[ip] += n; r.public[ip] == 0 {
			delete(r.public, ip)
		}
	}
}

// isPublished reports whether a lease publishes an address, used or not.
func (r *RIB) isPublished(ip netip.Addr) bool {
	if r.public == nil {
		r.public = make(map[netip.Addr]int, len(r.leases))
		for _, rec := range r.leases {
			r.countPublic(rec, 1)
		}
	}
	return r.public[ip] > 0
}

// Apply takes u over and reports whether that changed anything that Peers
// depends on. What was known under a key that is now unreadable stays: one bad
// write must not cut off a node that works. In an Update that is not a Reset a
// deleted key is gone even if Leases names it too.
//
// If a Reset lacks more than half of all leases, or has them as new entries, the store has lost its
// data and its nodes are about to register again: the leases that it lacks are kept, until DropKept. So
// are leases that are deleted or expire one by one, if they are more than half: see loss.
func (r *RIB) Apply(u Update) (changed bool) {
	old := r.leases
	changed, r.omitted = r.omitted != u.Omitted, u.Omitted
	if u.Reset {
		u.Older = u.Older || r.isBefore(u.Leases)
		r.clear()
		r.bad = newBadEntries()
	}
	for _, b := range u.Bad {
		known, ok := old[b.Key]
		if r.bad.put(b, ok); ok {
			r.back(known, u)
			r.put(known)
		}
	}
	newest := int64(0)
	again := 0                             // entries that were written again
	all := make([]ribLease, len(u.Leases)) // one allocation for all
	for i := range u.Leases {
		l := &u.Leases[i]
		key := l.Key()
		r.bad.remove(key)
		delete(r.loss.leases, key)
		newest = max(newest, l.CreateRevision)
		known, ok := old[key]
		if ok && r.staysBefore(known, l, u) {
			r.put(known)
			continue
		}
		if was, held := r.older[key]; !ok && held {
			if was.ModRevision == l.ModRevision {
				r.older[key] = *l
				continue
			}
			delete(r.older, key) // its node has written it since
		}
		if !ok || !known.SamePeer(*l) {
			changed = true
		}
		if ok {
			if known.CreateRevision != l.CreateRevision && !known.kept && !known.shelved {
				again++
			}
			r.back(known, u)
		}
		all[i] = ribLease{Lease: l, key: key}
		r.put(&all[i])
	}
	if u.Reset {
		if newest < r.newest {
			r.loss = loss{} // the store counts from the beginning again
		}
		if u.Older {
			r.holdBack(old)
		}
		r.keep(old, again, u.Older)
		r.listOlder(u.Leases)
		r.newest = newest
		return r.endOlder() || changed || len(r.leases) != len(old)
	}
	r.newest = max(r.newest, newest)
	for _, key := range u.Deleted {
		r.bad.remove(key)
		if r.isOlderGone(key) {
			continue
		}
		if known, ok := r.leases[key]; ok {
			r.lose(known, len(r.live)-r.kept-r.doubted)
			changed = true
		}
	}
	changed = r.endOlder() || changed
	return changed
}

// Len returns the number of leases that the store has, and of entries that are unreadable now.
func (r *RIB) Len() (leases, bad int) { return len(r.leases) + r.omitted, r.bad.len() }

// Leases returns the leases that may be used, in no certain order: those that are kept included, and those that the store has lost since
// the last Settle: if more follow, they are kept, too. Those are left out that were refused for themselves, or for the sake of an older one.
func (r *RIB) Leases() iter.Seq[Lease] {
	return func(yield func(Lease) bool) {
		for _, all := range [...]map[string]*ribLease{r.live, r.loss.leases} {
			for _, rec := range all {
				if !yield(*rec.Lease) {
					return
				}
			}
		}
	}
}

// Bad returns the entries that are unreadable now, in no certain order, 1000 at most.
func (r *RIB) Bad() []BadLease { return slices.Collect(maps.Values(r.bad.told)) }

// Holds reports whether the store's entry of l is there and says what l says.
func (r *RIB) Holds(l Lease) bool {
	key := l.Key()
	if r.bad.has(key) {
		return false
	}
	known, ok := r.leases[key]
	if !ok || known.kept {
		return false
	}
	seen := *known.Lease
	seen.Facts = l.Facts // of the own node this process alone knows what is right
	seen.CreateRevision, seen.ModRevision, seen.Expires, seen.Reserved = l.CreateRevision, l.ModRevision, l.Expires, l.Reserved
	return seen == l
}

// Lacks reports whether the store has nothing under the key of l.
func (r *RIB) Lacks(l Lease) bool {
	known, ok := r.leases[l.Key()]
	return !r.bad.has(l.Key()) && (!ok || known.kept)
}
