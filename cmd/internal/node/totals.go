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
	s.final.Do(func() { s.sum = s.count() })
	return s.sum
}

// count asks all of a session that counts.
func (s *Session) count() status.Totals {
	t := status.Totals{Sessions: 1, Control: s.controller.Status().Stats}
	if f := s.overlay.Forwarding(); f != nil {
		t.Carried, t.Counters = true, s.stats()
		if c, ok := f.Dataplane.(dataplane.PeerCounter); ok {
			t.Traffic = c.Traffic()
		}
	}
	if s.prober != nil {
		t.Probed, t.Probes = true, s.prober.Counts()
	}
	for _, p := range s.overlay.Status() {
		for _, o := range p.Objects {
			t.Repaired(status.Repairs{Part: p.Name, Kind: o.Kind, Count: o.Repairs, Last: o.LastRepair})
		}
	}
	return t
}

// stats returns the counters of the dataplane, with what the guard has dropped before it.
func (s *Session) stats() dataplane.Stats {
	sum := s.overlay.Forwarding().Stats()
	if s.guard != nil {
		sum.Add(dataplane.Stats{Drops: s.guard.Drops()})
	}
	return sum
}
