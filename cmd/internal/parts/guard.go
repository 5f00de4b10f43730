package parts

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/guard"
	"github.com/overlayd/overlayd/dataplane/hostroute"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// guardPart is the name of the part that keeps the guard.
const guardPart = "guard"

// withoutGuard says what is missing without a guard. The kernel dataplane is never without one that is asked for.
func (l *List) withoutGuard() string {
	if l.Mode == fit.Kernel {
		return ""
	}
	return "no guard: processes and pods of this host can send to the VXLAN port of peers, and hosts on the underlay in the name of pods"
}

// openGuard opens the guard. What keeps it from working also keeps the kernel dataplane from being used.
func (l *List) openGuard() (dataplane.Part, error) {
	b := l.Network.Backend
	c := guard.Config{
		Log:         l.Log,
		VNI:         b.VNI,
		Port:        b.Port,
		Check:       l.check(),
		AnyPeerFrom: l.AnyPeerFrom,
		AllowPlain:  l.PlainSource,
		Mark:        l.Mark(),
		Underlay:    l.Underlay.Name,
		Link:        l.Underlay.Index,
		Temporary:   rtnl.TemporaryNames(b.VNI),
		Direct:      b.DirectRouting,
		GBP:         b.GBP,
		Alone:       l.Others == nil,
		MinPathMTU:  cmp.Or(l.MinPathMTU, carrier.DefaultMinPathMTU),
		Settle:      l.Settle,
		Off:         l.GuardOff,
		Synced:      l.guarded,
		Deaf:        l.Deaf,
	}
	for _, u := range l.Ends {
		c.IPv4, c.IPv6 = c.IPv4 || u.Local.Is4(), c.IPv6 || u.Local.Is6()
		c.Local = append(c.Local, u.Local)
		if u.Public != u.Local {
			c.Local = append(c.Local, u.Public)
		}
	}
	g, err := guard.Open(c)
	if err != nil {
		l.noGuard = err
		if l.withoutGuard() != "" {
			l.guarded() // one of another VNI would drop what the sockets are to get
		}
		return nil, err
	}
	l.guard = g
	return g, nil
}

// guarded tells that no guard of another VNI is needed any more.
func (l *List) guarded() {
	if l.Guarded != nil {
		l.Guarded()
	}
}

// leaveTunnel removes what only a tunnel needs: the network may have had one before.
func (l *List) leaveTunnel() {
	l.guarded()
	_, err := guard.Cleanup(l.Network.Backend.VNI)
	if err = errors.Join(err, hostroute.Withdraw(l.Network.Prefixes())); err != nil {
		l.Log.Warn("guard rules or unreachable routes of an earlier network config are left, and may drop packets", "err", err, "fix", dataplane.FixOr(err, "overlayd guard off"))
	}
}

// check is the check that is asked for.
func (o *Options) check() dataplane.SourceCheck {
	return cmp.Or(o.SourceCheck, dataplane.SourceStrict)
}

// Mark returns the bits of the packet mark that let packets go to the VXLAN port of a peer.
func (o *Options) Mark() uint32 { return cmp.Or(o.EgressMark, guard.DefaultMark) }

// CheckInForce returns what is checked when the dataplane has that mode. Without a guard the kernel checks nothing.
func (l *List) CheckInForce(mode fit.Mode) dataplane.SourceCheck {
	if mode == fit.Kernel && (l.guard == nil || l.guard.IsOff()) {
		return dataplane.SourceOff
	}
	return l.check()
}

// Guard returns the guard once the overlay is open; nil: the kernel cannot have one, or there is no tunnel to guard.
func (l *List) Guard() *guard.Guard { return l.guard }

// openGuardedKernel opens the kernel dataplane, which has no check of its own.
func (l *List) openGuardedKernel(mtu int) (*kernel.Dataplane, error) {
	if l.noGuard != nil {
		return nil, fmt.Errorf("no check of where packets come from (--source-check=off does without): %w", l.noGuard)
	}
	return l.openKernel(mtu)
}

// forwardsItself has the guard check for the sockets of this process.
func (l *List) forwardsItself() {
	if l.guard != nil {
		l.guard.Forwards(false)
	}
}

// guardHolds reports whether the kernel's devices may be up.
func (l *List) guardHolds() bool { return l.guard == nil || l.guard.Holds() }

// guardKernel has the guard check for the kernel's devices, which take the places of this process's, or have done so.
func (l *List) guardKernel(w dataplane.Wanted, done bool) error {
	if l.guard == nil {
		return nil
	}
	var names []string
	if vni := l.Network.Backend.VNI; !done {
		names = []string{rtnl.TemporaryName(false, vni), rtnl.TemporaryName(true, vni)}
	}
	l.guard.Forwards(true, names...)
	return l.guard.Rewrite(w)
}
