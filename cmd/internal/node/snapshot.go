package node

import (
	"net/netip"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane/userspace"
)

// snapshot is how a network is: an immutable value, replaced at every event of its session and
// never changed, so that whoever reads it waits for nobody. What changes with every Sync is not
// copied into it: the controller publishes that itself, as such a value (controller.Status), and
// Status puts both together.
type snapshot struct {
	session *Session // nil between two sessions
	fault   error    // why there is no session
	at      time.Time
	ready   time.Time // when everything worked in this session; zero: it has not yet
	store   control.Store
	ended   status.Totals // of the sessions before this one
}

// totals returns what was counted so far.
func (s *snapshot) totals() status.Totals {
	if s.session == nil {
		return s.ended.Past()
	}
	return s.ended.Plus(s.session.counted())
}

// publish makes s how the network is. The session before, if there was one, has ended.
func (n *Network) publish(s snapshot) {
	before := n.snapshot.Load()
	s.at, s.store, s.ended = time.Now(), n.store, before.ended
	if before.session != s.session {
		if before.session != nil {
			before.session.over.Store(true)
		}
		s.ended = before.totals()
	}
	if s.fault != nil && before.fault != nil && s.fault.Error() == before.fault.Error() {
		s.at = before.at
	}
	n.snapshot.Store(&s)
}

// publishNoSession notes that there is no session, and why. The time stays while the reason does.
func (n *Network) publishNoSession(err error) { n.publish(snapshot{fault: err}) }

func (n *Network) isReady() bool { return !n.snapshot.Load().ready.IsZero() }

// Status returns how the network is. It may be called at any time.
func (n *Network) Status() status.Network {
	s := n.snapshot.Load()
	st := status.Network{V: status.Version, Name: n.name, Ready: !s.ready.IsZero(), ReadySince: s.ready, ConfigHeld: n.heldStatus.Load()}
	if r, ok := s.store.(control.StoreReporter); ok {
		store := r.Status()
		st.Store = &store
	}
	if s.fault != nil {
		st.Err, st.Fix, st.ErrSince = s.fault.Error(), n.fix(s.fault), s.at
	}
	if s.session != nil {
		s.session.report(&st)
	}
	if f := n.fileFault.Load(); f != nil {
		st.FileFaults = append(st.FileFaults, *f)
	}
	st.UnderlayFaults, st.Beside = n.health.Warnings(), n.beside.Warnings()
	s.totals().Report(&st)
	st.Control.Withdrawn += n.withdrawn.Load()
	st.ConfigRepairs = n.configRepairs.Load()
	return st
}

// report fills in what a session knows.
func (s *Session) report(st *status.Network) {
	b := s.config.Backend
	st.SessionStart, st.Mode, st.Port = s.began, string(s.overlay.Mode()), b.Port
	if b.IsVXLAN() {
		st.VNI = b.VNI
	}
	iface := s.iface
	if now := s.link.Load(); now != nil {
		iface = *now
	}
	st.Underlay = &status.Underlay{Interface: iface.Name, MTU: iface.MTU}
	for _, u := range s.network.underlays(s.config, iface) {
		st.Underlay.Ends = append(st.Underlay.Ends, status.End{Local: u.Local, Public: u.Public})
	}
	st.Parts = s.overlay.Status()
	for i := range st.Parts {
		st.Parts[i].Fix = s.network.fix(st.Parts[i].Cause)
	}
	if f := s.overlay.Forwarding(); f != nil {
		if u, ok := f.Dataplane.(*userspace.Dataplane); ok {
			st.Offloads = u.Offloads().Names()
		}
		st.SourceCheck, st.EgressMark = string(s.parts.CheckInForce(s.overlay.Mode())), s.parts.Mark()
		if f.Shared != nil {
			st.SharedPort = status.CountersByName(f.Shared.Stats())
		}
	}
	c := s.controller.Status()
	st.MTU = c.MTU
	if c.Held {
		st.Lease = leaseStatus(c.Lease)
	}
	st.LeaseFault, st.SyncFault = c.LeaseFault, c.SyncFault
	for _, f := range []controller.Fault{c.SubnetFileFault, c.LeasesFileFault} {
		if f.Err != "" {
			st.FileFaults = append(st.FileFaults, f)
		}
	}
	st.Peers = s.overlay.Marked(c.Peers)
	st.Rejected, st.Bad = c.Rejected, c.Bad
	if s.prober != nil {
		st.Probes = s.prober.Status()
	}
}

// leaseStatus is a lease in the words of the status: a family that it does not have is left out.
func leaseStatus(l control.Lease) *status.Lease {
	st := &status.Lease{Key: l.Key(), Expires: l.Expires}
	for _, e := range []struct {
		subnet netip.Prefix
		public netip.Addr
		vtep   control.VTEPData
	}{{l.Subnet, l.PublicIP, l.Backend}, {l.IPv6Subnet, l.PublicIPv6, l.BackendV6}} {
		if e.subnet.IsValid() {
			st.Subnets = append(st.Subnets, e.subnet)
		}
		if e.public.IsValid() {
			v := status.VTEP{Public: e.public}
			if l.BackendType == control.BackendVXLAN {
				v.MAC = e.vtep.MAC.String()
			}
			st.VTEPs = append(st.VTEPs, v)
		}
	}
	return st
}
