package control

import (
	"maps"
	"net/netip"
)

// isBefore reports whether the store shows an entry as it was before it was written last. This tells that the store went back even if
// so much has been written since that its revision is ahead again.
func (r *RIB) isBefore(leases []Lease) bool {
	if len(r.leases) == 0 {
		return false
	}
	for i := range leases {
		l := &leases[i]
		if known, ok := r.leases[l.Key()]; ok && !known.kept && known.ModRevision > l.ModRevision {
			return true
		}
	}
	return false
}

// staysBefore reports whether known, of another node than l, stays in its place for now. It does if the store went back to a
// time before known: its node most likely lives, and puts its entry back. Known is kept and l is remembered
// until then, or until DropKept.
func (r *RIB) staysBefore(known *ribLease, l *Lease, u Update) bool {
	if was, ok := r.older[known.key]; ok && was.ModRevision == l.ModRevision && known.kept {
		r.older[known.key] = *l
		return true
	}
	delete(r.older, known.key)
	if !u.Older || known.kept || known.shelved || known.ModRevision <= l.ModRevision || known.SamePublicIP(*l) {
		return false
	}
	if r.older == nil {
		r.older = map[string]Lease{}
	}
	r.older[known.key] = *l
	known.kept = true // keep counts it
	return true
}

// isOlderGone forgets what staysBefore has remembered of a key: what stands before it stays kept.
func (r *RIB) isOlderGone(key string) bool {
	_, ok := r.older[key]
	delete(r.older, key)
	return ok
}

// listOlder forgets what staysBefore has remembered if a list lacks it: what stands before it stays kept.
func (r *RIB) listOlder(leases []Lease) {
	if len(r.older) == 0 {
		return
	}
	listed := make(map[string]struct{}, len(leases))
	for i := range leases {
		listed[leases[i].Key()] = struct{}{}
	}
	maps.DeleteFunc(r.older, func(key string, _ Lease) bool { _, ok := listed[key]; return !ok })
}

// endOlder uses what was remembered if all that stands before it is back or given up. It reports whether that is so.
func (r *RIB) endOlder() bool {
	if r.kept+r.doubted > 0 || len(r.older) == 0 {
		return false
	}
	r.useOlder()
	return true
}

// useOlder puts what staysBefore has remembered in its place.
func (r *RIB) useOlder() {
	for key, l := range r.older {
		r.put(&ribLease{Lease: &l, key: key})
	}
	clear(r.older)
}

// holdBack does what staysBefore does, for leases under other keys: a dual-stack lease has come back, and a younger one, which is
// lacking now, has one of its subnets.
func (r *RIB) holdBack(old map[string]*ribLease) {
	has := map[netip.Prefix]*ribLease{}
	subnets := func(rec *ribLease) [2]netip.Prefix { return [...]netip.Prefix{rec.Subnet, rec.IPv6Subnet} }
	for key, rec := range old {
		if r.leases[key] == nil && !rec.shelved && rec.Claimant == "" {
			for _, p := range subnets(rec) {
				has[p] = rec
			}
		}
	}
	for key, rec := range r.leases {
		for _, p := range subnets(rec) {
			if now := has[p]; old[key] == nil && p.IsValid() && now != nil && now.ModRevision > rec.ModRevision && !now.SamePublicIP(*rec.Lease) {
				if r.older == nil {
					r.older = map[string]Lease{}
				}
				r.older[key] = *rec.Lease
				r.drop(rec)
				break
			}
		}
	}
}
