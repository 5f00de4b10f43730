package node

import (
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/dataplane"
)

// counted returns what a session has counted: the same for everybody when it is over. A reader that began before may
// have read more than the snapshots that follow have, so that it looks again.
func (s *Session) counted() status.Totals {
	now := s.count()
	if !s.over.Load() {
		return now
	}
	s.leave()
	return s.sum
}

// leave returns what the dataplane had counted when the session ended. From then on it counts for the next one.
func (s *Session) leave() status.Totals {
	s.over.Store(true)
	s.final.Do(func() {
		s.last = s.carried()
		s.sum = s.with(s.last)
	})
	return s.last
}

// count asks all of a session that counts.
func (s *Session) count() status.Totals { return s.with(s.carried()) }

// with is count, when the dataplane has counted that.
func (s *Session) with(carried status.Totals) status.Totals {
	t := carried.Since(s.before)
	t.Sessions, t.Control, t.Counters = 1, s.controller.Status().Stats, s.stats(carried)
	if s.prober != nil {
		t.Probed, t.Probes = true, s.prober.Counts()
	}
	f := s.overlay.Forwarding()
	for _, p := range s.overlay.Status() {
		if f == nil || p.Name != f.Status().Name {
			noteRepairs(&t, p)
		}
	}
	return t
}

// carried asks the dataplane, which may have counted for sessions before.
func (s *Session) carried() (t status.Totals) {
	f := s.overlay.Forwarding()
	if f == nil {
		return t
	}
	t.Carried, t.Counters = true, f.Stats()
	if c, ok := f.Dataplane.(dataplane.PeerCounter); ok {
		t.Traffic = c.Traffic()
	}
	noteRepairs(&t, f.Status())
	return t
}

func noteRepairs(t *status.Totals, p dataplane.PartStatus) {
	for _, o := range p.Objects {
		t.Repaired(status.Repairs{Part: p.Name, Kind: o.Kind, Count: o.Repairs, Last: o.LastRepair})
	}
}

// stats returns the counters of the dataplane, when it has counted that, with what the guard has dropped before it.
func (s *Session) stats(carried status.Totals) dataplane.Stats {
	sum := carried.Since(s.before).Counters
	if g := s.parts.Guard(); g != nil && carried.Carried {
		sum.Add(dataplane.Stats{Drops: g.Drops()})
	}
	return sum
}
