package status

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane"
)

// Totals are what the sessions of a network have counted. The parts, the dataplane and the controller
// count from zero in each session; whoever reads the status wants counters that never fall. Totals is a value: what adds
// to one makes another, so that no reader adds a session twice or leaves it out.
type Totals struct {
	Sessions uint64
	Control  controller.Stats
	Carried  bool // at least one session had a dataplane, which Counters are of
	Counters dataplane.Stats
	Traffic  map[netip.Addr]dataplane.Traffic // by VTEP, of the peers of the last session; nobody changes one that is there
	Probed   bool                             // at least one session had a prober
	Probes   ProbeCounts
	Repairs  []Repairs // nobody changes one that is there
}

// Past returns t without what was true of the last session, which has ended.
func (t Totals) Past() Totals {
	t.Control = controller.Stats{}.Plus(t.Control)
	return t
}

// Plus returns t with what another session, own, has counted so far.
func (t Totals) Plus(own Totals) Totals {
	t.Sessions += own.Sessions
	t.Control = own.Control.Plus(t.Control)
	t.Carried = t.Carried || own.Carried
	t.Counters.Add(own.Counters)
	t.Traffic = plusTraffic(own.Traffic, t.Traffic)
	t.Probed = t.Probed || own.Probed
	t.Probes = t.Probes.Plus(own.Probes)
	t.Repairs = slices.Clone(t.Repairs)
	for _, r := range own.Repairs {
		t.Repaired(r)
	}
	return t
}

// Since returns what a dataplane has counted, t, without what it had counted before.
func (t Totals) Since(before Totals) Totals {
	t.Counters.Less(before.Counters)
	if len(before.Traffic) > 0 {
		t.Traffic = maps.Clone(t.Traffic)
	}
	for vtep, now := range t.Traffic {
		if was := before.Traffic[vtep]; now.TxBytes >= was.TxBytes && now.RxBytes >= was.RxBytes && was != (dataplane.Traffic{}) {
			t.Traffic[vtep] = dataplane.Traffic{TxBytes: now.TxBytes - was.TxBytes, RxBytes: now.RxBytes - was.RxBytes}
		} // else it has become a peer again
	}
	all := t.Repairs
	t.Repairs = nil
	for _, r := range all {
		if i := slices.IndexFunc(before.Repairs, r.sameObject); i >= 0 {
			r.Count -= before.Repairs[i].Count
		}
		t.Repaired(r)
	}
	return t
}

func (r Repairs) sameObject(o Repairs) bool { return r.Part == o.Part && r.Kind == o.Kind }

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

// Repaired adds repairs; those of no object are left out.
func (t *Totals) Repaired(r Repairs) {
	if r.Count == 0 {
		return
	}
	i := slices.IndexFunc(t.Repairs, r.sameObject)
	if i < 0 {
		t.Repairs = append(t.Repairs, r)
		return
	}
	t.Repairs[i].Count += r.Count
	t.Repairs[i].Last = r.Last
}

// Report fills in the counters of st.
func (t Totals) Report(st *Network) {
	st.Sessions, st.Control, st.Repairs = t.Sessions, t.Control, t.Repairs
	if t.Carried {
		st.Counters = CountersByName(t.Counters)
	}
	for vtep, traffic := range t.Traffic {
		if traffic != (dataplane.Traffic{}) {
			st.Traffic = append(st.Traffic, PeerTraffic{VTEP: vtep, Traffic: traffic})
		}
	}
	slices.SortFunc(st.Traffic, func(a, b PeerTraffic) int { return a.VTEP.Compare(b.VTEP) })
	if t.Probed {
		if st.Probes == nil {
			st.Probes = new(Probes)
		}
		st.Probes.Counts = t.Probes
	}
}

// CountersByName returns the counters of a dataplane, each with the name that Counters gives it.
func CountersByName(s dataplane.Stats) map[string]uint64 {
	m := map[string]uint64{}
	for _, c := range Counters(s) {
		m[c.Name] = c.Value
	}
	return m
}
