package control

import (
	"cmp"
	"slices"
)

// Refused leases can be many more than those that are used: whoever may write one can write as many as he likes. So most of them are on
// the shelf: they are refused until the lease itself changes, or this host does, or the older lease goes that they overlap. They take part
// in no further call of Peers, which then costs what the other leases cost, however many are refused.

// shelf has the leases that stay refused. Each of them has shelved set.
type shelf struct {
	self     Lease // what the refusals are right for
	underlay Underlay
	lengths  *Lengths

	told  map[string][]Rejection // why, by key: of maxRejected of them
	named int                    // in told
	list  []Rejection            // told, sorted by key; nil: it is to be made again
	count int                    // families that are refused

	over map[holder]struct{} // whom others are behind
}

// holder is a lease that has its subnet of a family.
type holder struct {
	rec    *ribLease
	family int
}

func newShelf() shelf { return shelf{told: map[string][]Rejection{}, over: map[holder]struct{}{}} }

// judge empties the shelf if the refusals may not be right any more.
func (r *RIB) judge(self *Lease) {
	s := &r.shelf
	if s.lengths == r.Lengths && s.self.SamePeer(*self) && s.underlay.Equal(r.Underlay) {
		return
	}
	r.emptyShelf()
	s.self, s.underlay, s.lengths = *self, r.Underlay, r.Lengths
}

func (r *RIB) emptyShelf() {
	for _, rec := range r.leases {
		r.unshelve(rec)
	}
	clear(r.shelf.over)
}

// shelve puts a lease on the shelf whose families are all refused.
func (r *RIB) shelve(rec *ribLease) {
	rec.shelved = true
	delete(r.live, rec.key)
	r.shelf.count += int(rec.refusals)
	for family, older := range rec.behind {
		if older != nil {
			r.shelf.over[holder{older, family}] = struct{}{}
		}
	}
}

// unshelve has a lease judged again.
func (r *RIB) unshelve(rec *ribLease) {
	if !rec.shelved {
		return
	}
	s := &r.shelf
	rec.shelved, rec.behind = false, [2]*ribLease{}
	r.live[rec.key] = rec
	s.count -= int(rec.refusals)
	if known, ok := s.told[rec.key]; ok {
		delete(s.told, rec.key)
		s.named -= len(known)
		s.list = nil
	}
}

// releaseBehind has the leases judged again that are behind one that does not have its subnet any more as it had, and reports whether
// there was any.
func (r *RIB) releaseBehind() (released bool) {
	gone := map[holder]bool{}
	for h := range r.shelf.over {
		if h.rec.holds[h.family] != r.calls {
			gone[h] = true
			delete(r.shelf.over, h)
		}
	}
	if len(gone) == 0 {
		return false
	}
	for _, rec := range r.leases {
		if rec.shelved && (gone[holder{rec.behind[0], 0}] || gone[holder{rec.behind[1], 1}]) {
			r.unshelve(rec)
			released = true
		}
	}
	return released
}

// tell takes the reasons of leases that were shelved now, as far as there is room, and returns the others.
func (s *shelf) tell(rejected []Rejection) (others []Rejection) {
	others = rejected[:0]
	for _, x := range rejected {
		switch {
		case !x.rec.shelved:
			others = append(others, x)
		case s.named < maxRejected || x.isContest():
			s.told[x.Key] = append(s.told[x.Key], x)
			s.named++
			s.list = nil
		}
	}
	return others
}

// with returns the reasons on the shelf and others, sorted by key: maxRejected of them at most, the oldest. Nobody changes what it
// returns, and it returns the same slice while it is the same.
func (s *shelf) with(others []Rejection) []Rejection {
	if s.list == nil {
		s.list = make([]Rejection, 0, s.named)
		for _, known := range s.told {
			s.list = append(s.list, known...)
		}
		sortByKey(s.list)
	}
	if len(others) == 0 {
		return s.list
	}
	all := oldestRejected(slices.Concat(s.list, others))
	sortByKey(all)
	return all
}

func sortByKey(all []Rejection) {
	slices.SortStableFunc(all, func(x, y Rejection) int {
		return cmp.Or(cmp.Compare(x.Key, y.Key), x.Subnet.Addr().Compare(y.Subnet.Addr()))
	})
}
