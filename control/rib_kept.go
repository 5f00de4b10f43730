package control

import "net/netip"

// keep ends a Reset. It takes over from old the leases that were kept already. It keeps those that the
// Reset lacks if they and the entries that were written again are more than half, or if the Reset is
// of an earlier time; else it loses each.
func (r *RIB) keep(old map[string]*ribLease, again int, older bool) {
	var lacking []*ribLease
	before := -r.kept - r.doubted
	r.kept, r.doubted = 0, 0
	for key, rec := range old {
		now, ok := r.leases[key]
		if rec.shelved && now != rec || rec.Claimant != "" {
			continue // nobody misses it: see lose
		}
		before++
		switch {
		case ok && now == rec && rec.kept:
			r.count(rec)
		case ok:
		case rec.kept:
			r.put(rec)
			r.count(rec)
		default:
			lacking = append(lacking, rec)
		}
	}
	for _, rec := range lacking {
		r.put(rec)
		if older || 2*(len(lacking)+again) > before {
			r.retain(rec)
		} else {
			r.lose(rec, before)
		}
	}
}

// retain keeps a lease that the store has lost.
func (r *RIB) retain(rec *ribLease) {
	if rec.doubted {
		r.doubted--
	}
	rec.kept, rec.doubted = true, false
	r.put(rec)
	r.kept++
}

// back notes that u has the key of rec again. In a Reset, keep counts the kept leases afterwards.
func (r *RIB) back(rec *ribLease, u Update) {
	if !u.Reset {
		r.uncount(rec)
	}
	rec.kept, rec.doubted = false, false
}

func (r *RIB) forget(rec *ribLease) {
	r.uncount(rec)
	rec.kept, rec.doubted = false, false // if most follow, it is kept all the same
	r.drop(rec)
}

// count adds a lease to the number of those that are kept, or used until Resolve.
func (r *RIB) count(rec *ribLease) {
	if rec.doubted {
		r.doubted++
	} else {
		r.kept++
	}
}

// uncount takes a lease out of the numbers of those that are kept, or used until Resolve.
func (r *RIB) uncount(rec *ribLease) {
	switch {
	case rec.doubted:
		r.doubted--
	case rec.kept:
		r.kept--
	}
}

// Kept returns the number of leases that are kept though the store has lost them.
func (r *RIB) Kept() int { return r.kept }

// DropKept forgets the leases that are kept though the store has lost them.
func (r *RIB) DropKept() {
	for _, rec := range r.live {
		if rec.kept {
			r.forget(rec)
		}
	}
	r.useOlder()
}

// KeptSubnets returns the subnets of the leases that are kept, nil if none are kept.
func (r *RIB) KeptSubnets() map[netip.Prefix]struct{} {
	if r.kept+r.doubted == 0 {
		return nil
	}
	subnets := make(map[netip.Prefix]struct{}, r.kept+r.doubted)
	for _, rec := range r.live {
		if rec.kept {
			subnets[rec.Subnet], subnets[rec.IPv6Subnet] = struct{}{}, struct{}{}
		}
	}
	return subnets
}
