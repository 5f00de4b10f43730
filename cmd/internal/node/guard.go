package node

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/guard"
	"github.com/overlayd/overlayd/dataplane/hostroute"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// guardPart is the name of the part that keeps the guard.
const guardPart = "guard"

// withoutGuard says what is missing without a guard. The kernel dataplane is never without one that is asked for.
func (s *Session) withoutGuard() string {
	if s.network.cfg.Mode == fit.Kernel {
		return ""
	}
	return "no guard: processes and pods of this host can send to the VXLAN port of peers, and hosts on the underlay in the name of pods"
}

// openGuard opens the guard. What keeps it from working also keeps the kernel dataplane from being used.
func (s *Session) openGuard() (dataplane.Part, error) {
	n, b := s.network, s.config.Backend
	c := guard.Config{
		Log:         n.log,
		VNI:         b.VNI,
		Port:        b.Port,
		Check:       n.cfg.sourceCheck(),
		AnyPeerFrom: n.cfg.AnyPeerFrom,
		AllowPlain:  n.cfg.PlainSource,
		Mark:        n.cfg.egressMark(),
		Underlay:    s.iface.Name,
		Link:        s.iface.Index,
		Direct:      b.DirectRouting,
		Alone:       !n.cfg.several(),
		Settle:      n.settle,
		Off:         n.daemon.guardOff.Load,
		Deaf:        n.cfg.Deaf,
	}
	for _, u := range n.underlays(s.config, s.iface) {
		c.IPv4, c.IPv6 = c.IPv4 || u.Local.Is4(), c.IPv6 || u.Local.Is6()
	}
	g, err := guard.Open(c)
	if err != nil {
		s.noGuard = err
		return nil, err
	}
	s.guard = g
	return g, nil
}

// guardSettles is how long after a change of the network config the hosts may still have another one. A host takes about a
// second.
const guardSettles = 5 * time.Second

// settleGuard prepares the guard for the next session, after one has ended with err.
func (s *Session) settleGuard(err error) {
	s.network.settle = 0
	if errors.Is(err, control.ErrNetworkChanged) {
		s.network.settle = guardSettles
		if s.guard != nil {
			s.guard.Relax()
		}
	}
}

// leaveTunnel removes what only a tunnel needs: the network may have had one before.
func (s *Session) leaveTunnel() {
	_, err := guard.Cleanup(s.config.Backend.VNI)
	if err = errors.Join(err, hostroute.Withdraw(s.config.Prefixes())); err != nil {
		s.network.log.Warn("what an earlier network config needed is left, and may keep packets out", "err", err, "fix", "overlayd guard off")
	}
}

func (c *Config) sourceCheck() dataplane.SourceCheck {
	return cmp.Or(c.SourceCheck, dataplane.SourceStrict)
}

func (c *Config) egressMark() uint32 { return cmp.Or(c.EgressMark, guard.DefaultMark) }

// openGuardedKernel opens the kernel dataplane, which has no check of its own.
func (s *Session) openGuardedKernel(mtu int) (*kernel.Dataplane, error) {
	if s.noGuard != nil {
		return nil, fmt.Errorf("no check of where packets come from (--source-check=off does without): %w", s.noGuard)
	}
	return s.openKernel(mtu)
}

// forwardsItself has the guard check for the sockets of this process.
func (s *Session) forwardsItself() {
	if s.guard != nil {
		s.guard.Forwards(false)
	}
}

// guardHolds reports whether the kernel's devices may be up.
func (s *Session) guardHolds() bool { return s.guard == nil || s.guard.Holds() }

// guardKernel has the guard check for the kernel's devices, which take the places of this process's, or have done so.
func (s *Session) guardKernel(w dataplane.Wanted, done bool) error {
	if s.guard == nil {
		return nil
	}
	var names []string
	if vni := s.config.Backend.VNI; !done {
		names = []string{rtnl.TemporaryName(false, vni), rtnl.TemporaryName(true, vni)}
	}
	s.guard.Forwards(true, names...)
	return s.guard.Rewrite(w)
}

// SwitchGuard switches the guards of all networks off, which removes their rules, or on again. It holds until it is called
// again, or the process ends.
func (d *Daemon) SwitchGuard(on bool) error {
	d.guardOff.Store(!on)
	var errs []error
	for _, s := range d.expects.sessions() {
		if s.guard != nil {
			errs = append(errs, s.guard.Switched())
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
