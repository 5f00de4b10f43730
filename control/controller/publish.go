package controller

import (
	"net/netip"
	"slices"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
)

// Status returns how the Controller is now. It may be called at any time, waits for nothing
// and never returns nil: before Run the Status is empty but for the MTU. The caller must not
// change what it points to.
func (c *Controller) Status() *Status { return c.status.Load() }

// publish makes a new Status of the present one. Slices in it are replaced and never changed.
func (c *Controller) publish(change func(*Status)) {
	c.mu.Lock()
	next := *c.status.Load()
	change(&next)
	c.status.Store(&next)
	c.mu.Unlock()
	c.cfg.Published()
}

// set makes f the fault err, or none. Since stays while the reason does. fix says what to do about it.
func (f *Fault) set(err error, fix func(error) string) {
	if err == nil {
		*f = Fault{}
		return
	}
	next := Fault{Reason: control.Reason(err), Err: control.Printable(err.Error(), control.FaultBytes), Fix: fix(err), Since: f.Since}
	if f.Reason != next.Reason {
		next.Since = time.Now()
	}
	*f = next
}

// peerReport is what is known of the peers after a Sync.
type peerReport struct {
	peers    []dataplane.Peer
	names    []string // of the nodes of their subnets, in order
	failed   map[dataplane.VTEP]error
	kept     map[netip.Prefix]struct{} // subnets that only the RIB still has
	down     bool                      // the Sync failed as a whole: it says nothing about any peer
	rejected []EntryStatus
	refused  int           // of which rejected are the first
	limits   []EntryStatus // what does not work with peers that are programmed
}

// statuses returns how each subnet is. It keeps what has not changed since before, which has
// the same order: one pass over both.
func (r peerReport) statuses(before []PeerStatus, now time.Time) []PeerStatus {
	subnets := 0
	for i := range r.peers {
		subnets += len(r.peers[i].Subnets)
	}
	all := make([]PeerStatus, 0, subnets+len(r.rejected))
	limits := r.limitsBySubnet()
	for i := range r.peers {
		p := &r.peers[i]
		for _, subnet := range p.Subnets {
			for len(before) > 0 && before[0].isBefore(p.VTEP, subnet) {
				before = before[1:]
			}
			known := len(before) > 0 && before[0].State != PeerRefused && before[0].Subnet == subnet && before[0].VTEP == p.Addr
			state, err := r.state(p.VTEP, subnet)
			limit := limits[subnet]
			if known && err == nil && (state == before[0].State && (state != PeerUp || limit.Reason == before[0].Reason) || state == PeerUnknown) {
				same := before[0]
				same.Name = r.names[len(all)]
				all = append(all, same)
				continue
			}
			s := PeerStatus{Name: r.names[len(all)], Subnet: subnet, VTEP: p.Addr, MAC: p.MAC, State: state, Since: now}
			if s.explain(err, limit); known && before[0].State == s.State && before[0].Reason == s.Reason {
				s.Since = before[0].Since
			}
			all = append(all, s)
		}
	}
	for _, e := range r.rejected {
		all = append(all, PeerStatus{Subnet: e.Subnet, Name: e.Name, State: PeerRefused, Reason: e.Reason, Err: e.Err, Since: e.Since})
	}
	return all
}

// withdrawn returns how many subnets were used before and are not now, because their leases are refused.
func (r peerReport) withdrawn(before []PeerStatus) (n uint64) {
	if len(r.rejected) == 0 {
		return 0
	}
	gone := make(map[netip.Prefix]bool, len(before))
	for _, p := range before {
		gone[p.Subnet] = gone[p.Subnet] || p.State != PeerRefused
	}
	for _, p := range r.peers {
		for _, s := range p.Subnets {
			delete(gone, s)
		}
	}
	for _, e := range r.rejected {
		if gone[e.Subnet] {
			n++
			delete(gone, e.Subnet)
		}
	}
	return n
}

// limitsBySubnet returns the first limit of each subnet that has one.
func (r peerReport) limitsBySubnet() map[netip.Prefix]Fault {
	if len(r.limits) == 0 {
		return nil
	}
	limits := make(map[netip.Prefix]Fault, len(r.limits))
	for _, e := range r.limits {
		if _, ok := limits[e.Subnet]; !ok {
			limits[e.Subnet] = e.Fault
		}
	}
	return limits
}

// state returns the state of a peer's subnet and, if that is PeerFailed, why.
func (r peerReport) state(v dataplane.VTEP, subnet netip.Prefix) (PeerState, error) {
	if r.down {
		return PeerUnknown, nil
	}
	if err := r.failed[v]; err != nil {
		return PeerFailed, err
	}
	if _, kept := r.kept[subnet]; kept {
		return PeerKept, nil
	}
	return PeerUp, nil
}

// Fail makes s the status of a peer that this host cannot reach since then, because of err.
func (s *PeerStatus) Fail(err error, since time.Time) {
	s.State, s.Since = PeerFailed, since
	s.explain(err, Fault{})
}

// explain says why the state is what it is, or what does not work though it is up.
func (s *PeerStatus) explain(err error, limit Fault) {
	switch s.State {
	case PeerUp:
		s.Reason, s.Err = limit.Reason, limit.Err
	case PeerFailed:
		if s.Reason, s.Err = control.Reason(err), printable(err.Error()); s.Reason == "other" {
			s.Reason = "not_programmed"
		}
	case PeerKept:
		s.Reason, s.Err = "lease_missing", "the store has lost the lease: its node has not come back yet"
	case PeerUnknown:
		s.Reason, s.Err = "not_attempted", "no sync has succeeded since the lease appeared"
	}
}

// isBefore reports whether s stands before a subnet of a peer in the order of RIB.Peers.
// Refused ones stand last.
func (s *PeerStatus) isBefore(v dataplane.VTEP, subnet netip.Prefix) bool {
	if s.State == PeerRefused {
		return false
	}
	if s.VTEP != v.Addr {
		return s.VTEP.Less(v.Addr)
	}
	if s.MAC != v.MAC {
		return slices.Compare(s.MAC[:], v.MAC[:]) < 0
	}
	return s.Subnet.Addr().Less(subnet.Addr())
}
