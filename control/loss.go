package control

// loss has the leases that the store has lost within a time, which begins with the first of them and ends with
// RIB.Settle. If one lease goes, a node goes. If more than half of the leases go that there were at the beginning,
// the store has lost its data, or its nodes cannot reach it: their subnets most likely work, and are kept.
type loss struct {
	mass   int64                // of the leases up to this CreateRevision most were lost: whatever else of these goes is kept
	before int                  // how many leases there were
	newest int64                // the highest CreateRevision of them; a younger lease that goes does not count, but is kept with the others
	leases map[string]*ribLease // lost since, not back, and not kept yet
}

// minLoss is how many leases are lost at least when it is the store that loses them.
const minLoss = 2

// lose takes note of a lease that the store no longer has. If most are lost, it keeps this one and those lost
// before it; as long as that may come, until Resolve, it goes on using them. before is how many leases the store had.
func (r *RIB) lose(rec *ribLease, before int) {
	switch {
	case rec.kept, rec.shelved, rec.Claimant != "": // another node has these subnets: it is no loss, or this one has them under another key now
		r.forget(rec)
		return
	case rec.CreateRevision <= r.loss.mass:
		r.retain(rec)
		return
	case r.loss.leases == nil:
		r.loss.before, r.loss.newest, r.loss.leases = before, r.newest, map[string]*ribLease{}
	}
	if rec.CreateRevision > r.loss.newest {
		r.doubt(rec)
		return
	}
	r.loss.leases[rec.key] = rec
	if n := len(r.loss.leases); n < minLoss || 2*n <= r.loss.before {
		r.doubt(rec)
		return
	}
	for _, lost := range r.loss.leases {
		r.retain(lost)
	}
	for _, lost := range r.live {
		if lost.doubted {
			r.retain(lost)
		}
	}
	r.loss = loss{mass: r.newest} // what comes back, and goes again, is another loss
}

// doubt goes on using a lease that the store has lost, until Resolve.
func (r *RIB) doubt(rec *ribLease) {
	rec.kept, rec.doubted = true, true
	r.doubted++
}

// Doubted returns the number of leases that the store has lost, and that are used until Resolve.
func (r *RIB) Doubted() int { return r.doubted }

// Resolve forgets the leases that are Doubted: the store has not lost most.
func (r *RIB) Resolve() {
	for _, rec := range r.live {
		if rec.doubted {
			r.forget(rec)
		}
	}
	r.endOlder()
}

// Lost reports whether the store has lost a lease since the last Settle.
func (r *RIB) Lost() bool { return r.loss.leases != nil || r.loss.mass > 0 }

// Settle ends the time in which losses belong together.
func (r *RIB) Settle() { r.loss = loss{} }
