package node

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane"
)

// totals are what the sessions of a network have counted that have ended. The parts, the dataplane and the controller
// count from zero in each session; whoever reads the status wants counters that never fall. totals is a value in the
// snapshot, so that no reader adds a session twice or leaves it out.
type totals struct {
	sessions uint64
	control  controller.Stats
	carried  bool // at least one session had a dataplane, which counters are of
	counters dataplane.Stats
	traffic  map[netip.Addr]dataplane.Traffic // by VTEP, of the peers of the last session; nobody changes one that is there
	probed   bool                             // at least one session had a prober
	probes   status.ProbeCounts
	repairs  []status.Repairs // nobody changes one that is there
}

// plus returns t with what a session has counted so far; nil is one that has counted nothing.
func (t totals) plus(s *Session) totals {
	if s == nil {
		t.control = controller.Stats{}.Plus(t.control) // without what was true of the last session
		return t
	}
	own := s.counted()
	t.sessions += own.sessions
	t.control = own.control.Plus(t.control)
	t.carried = t.carried || own.carried
	t.counters.Add(own.counters)
	t.traffic = plusTraffic(own.traffic, t.traffic)
	t.probed = t.probed || own.probed
	t.probes = t.probes.Plus(own.probes)
	t.repairs = slices.Clone(t.repairs)
	for _, r := range own.repairs {
		t.repaired(r)
	}
	return t
}

// counted returns what a session has counted: the same for everybody when it is over. A reader that began before may
// have read more than the snapshots that follow have, so that it looks again.
func (s *Session) counted() totals {
	now := s.count()
	if !s.over.Load() {
		return now
	}
	s.final.Do(func() { s.sum = s.count() })
	return s.sum
}

// count asks all of a session that counts.
func (s *Session) count() totals {
	t := totals{sessions: 1, control: s.controller.Status().Stats}
	if f := s.overlay.forward; f != nil {
		t.carried, t.counters = true, s.stats()
		if c, ok := f.Dataplane.(dataplane.PeerCounter); ok {
			t.traffic = c.Traffic()
		}
	}
	if s.prober != nil {
		t.probed, t.probes = true, s.prober.Counts()
	}
	for _, p := range s.overlay.Status() {
		for _, o := range p.Objects {
			t.repaired(status.Repairs{Part: p.Name, Kind: o.Kind, Count: o.Repairs, Last: o.LastRepair})
		}
	}
	return t
}

// stats returns the counters of the dataplane, with what the guard has dropped before it.
func (s *Session) stats() dataplane.Stats {
	sum := s.overlay.forward.Stats()
	if s.guard != nil {
		sum.Add(dataplane.Stats{Drops: s.guard.Drops()})
	}
	return sum
}

// plusTraffic returns the traffic of the peers that are there now, with what was counted for them before.
func plusTraffic(now, before map[netip.Addr]dataplane.Traffic) map[netip.Addr]dataplane.Traffic {
	if len(before) == 0 {
		return now
	}
	sum := maps.Clone(now)
	for vtep, t := range now {
		sum[vtep] = t.Plus(before[vtep])
	}
	return sum
}

// repaired adds repairs; those of no object are left out.
func (t *totals) repaired(r status.Repairs) {
	if r.Count == 0 {
		return
	}
	i := slices.IndexFunc(t.repairs, func(have status.Repairs) bool { return have.Part == r.Part && have.Kind == r.Kind })
	if i < 0 {
		t.repairs = append(t.repairs, r)
		return
	}
	t.repairs[i].Count += r.Count
	t.repairs[i].Last = r.Last
}

// report fills in the counters.
func (t totals) report(st *status.Network) {
	st.Sessions, st.Control, st.Repairs = t.sessions, t.control, t.repairs
	if t.carried {
		st.Counters = countersByName(t.counters)
	}
	for vtep, traffic := range t.traffic {
		if traffic != (dataplane.Traffic{}) {
			st.Traffic = append(st.Traffic, status.PeerTraffic{VTEP: vtep, Traffic: traffic})
		}
	}
	slices.SortFunc(st.Traffic, func(a, b status.PeerTraffic) int { return a.VTEP.Compare(b.VTEP) })
	if t.probed {
		if st.Probes == nil {
			st.Probes = new(status.Probes)
		}
		st.Probes.Counts = t.probes
	}
}
