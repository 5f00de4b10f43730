package node

import (
	"errors"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/overlay"
	"github.com/overlayd/overlayd/cmd/internal/parts"
	"github.com/overlayd/overlayd/control"
)

// carriedBy tells the parts of a session's overlay what they are to carry.
func (s *Session) carriedBy() parts.List {
	n := s.network
	c := parts.Config{
		Options:   n.cfg.Options,
		Log:       n.log,
		LogAttrs:  n.attrs,
		Network:   s.config,
		Underlay:  s.iface,
		Ends:      n.underlays(s.config, s.iface),
		Settle:    n.settle,
		Captures:  n.cfg.Captures,
		GuardOff:  n.daemon.guardOff.Load,
		Guarded:   n.retireGuards,
		Kept:      s.takeKept,
		Inherited: &n.inherits,
	}
	if d := n.daemon; n.cfg.several() {
		c.Others = &parts.Others{Log: d.cfg.Log, Ports: &d.ports, Claimed: &d.claimed, Unclaimed: d.expects.unclaimed}
	}
	return parts.List{Config: c}
}

// specs lists the parts of the overlay.
func (s *Session) specs(mtu int) []overlay.Spec { return s.parts.Specs(mtu) }

// guardSettles is how long after a change of the network config the hosts may still have another one, and send without encapsulation what others do not. A host
// takes about a second.
const guardSettles = 5 * time.Second

// settleGuard prepares the guard for the next session, after one has ended with err.
func (s *Session) settleGuard(err error) {
	s.network.settle = 0
	if errors.Is(err, control.ErrNetworkChanged) && !errors.As(err, new(encapsulatedAlike)) {
		s.network.settle = guardSettles
		if g := s.parts.Guard(); g != nil {
			g.Relax()
		}
	}
}

// SwitchGuard switches the guards of all networks off, which removes their rules, or on again. It holds until it is called
// again, or the process ends.
func (d *Daemon) SwitchGuard(on bool) error {
	d.guardOff.Store(!on)
	var errs []error
	for _, s := range d.expects.sessions() {
		if g := s.parts.Guard(); g != nil {
			errs = append(errs, g.Switched())
		}
	}
	return errors.Join(errs...)
}

// GuardIsOn reports whether the guards are switched on.
func (d *Daemon) GuardIsOn() bool { return !d.guardOff.Load() }

// sessions returns those that run.
func (e *expected) sessions() (all []*Session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range e.networks {
		if s := n.snapshot.Load().session; s != nil {
			all = append(all, s)
		}
	}
	return all
}
