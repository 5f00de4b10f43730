package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/pace"
)

const (
	checkGap     = doubtTime / 2 // between renewals that the watch asks for: peers use a lease that is gone for doubtTime
	fightGap     = time.Second   // the same while somebody keeps undoing them
	drainGrace   = time.Second   // from the release of the lease to the end of Run
	acquireHigh  = 2 * time.Second
	takenHigh    = 500 * time.Millisecond // while another node has the address, which it may leave at any time
	changedTries = 8                      // a config that changes to and fro is soon the one of this Controller again
	changedPause = 50 * time.Millisecond
	repeatLoudly = time.Minute // of an unchanged reason to have no lease

	printableBytes = 256 // of each other text from the store that is logged
)

// keep owns the lease: it acquires one, renews it, and starts again when it is
// lost. It returns nil when ctx ends or the node is drained, and ErrNetworkChanged or ErrCloned.
func (c *Controller) keep(ctx context.Context) error {
	node := c.cfg.Node
	for {
		l, ok, err := c.acquire(ctx, node)
		if !ok {
			return err
		}
		c.cfg.Log.InfoContext(ctx, "lease acquired", "subnet", l.CIDRs(), "public_ip", l.Identity(), expiry(l))
		c.setLease(l, func(*Stats) {})
		lost := c.hold(ctx, l)
		if lost == nil {
			return nil
		}
		c.loseLease(lost)
		node.Previous = slices.DeleteFunc(slices.Clone(node.Previous), func(p netip.Prefix) bool {
			return p == l.Subnet || p == l.IPv6Subnet
		})
		if !errors.Is(lost, control.ErrLost) { // to take back by its MAC what somebody else has would begin a fight for it
			node.Previous = append(node.Previous, subnetsOf(l)...)
		}
	}
}

// acquire asks for a lease until there is one. ok is false if ctx ends or the node is
// drained first, or if there can be none: ErrNetworkChanged, ErrCloned.
func (c *Controller) acquire(ctx context.Context, node control.Node) (l control.Lease, ok bool, err error) {
	again := pace.Backoff{Low: 100 * time.Millisecond, High: acquireHigh}
	reported := pace.Notices{Repeat: repeatLoudly}
	for changed := 1; ; {
		l, err := c.tryAcquire(ctx, node)
		switch {
		case err == nil:
			return l, true, nil
		case ctx.Err() != nil:
			return control.Lease{}, false, nil
		case errors.Is(err, control.ErrNetworkChanged):
			if changed == changedTries {
				return control.Lease{}, false, err
			}
			if changed++; !pace.Sleep(ctx, changedPause, c.drain) {
				return control.Lease{}, false, nil
			}
			continue
		}
		c.publish(func(s *Status) { s.LeaseFault.set(err, c.cfg.Fix) })
		if errors.Is(err, control.ErrCloned) {
			return control.Lease{}, false, err
		}
		if due, _ := reported.Due(time.Now(), pace.Notice{Text: control.Kind(err)}); len(due) > 0 {
			c.cfg.Log.ErrorContext(ctx, "no lease: trying again", "err", control.Printable(err.Error(), control.FaultBytes))
		}
		pause := again.Next()
		if errors.Is(err, control.ErrTaken) {
			pause = min(pause, takenHigh)
		}
		if !pace.Sleep(ctx, pause, c.drain) {
			return control.Lease{}, false, nil
		}
	}
}

// tryAcquire makes one attempt. No lease is written of a network that this Controller cannot use. What the host needs of
// the underlay may have changed since the last attempt.
func (c *Controller) tryAcquire(ctx context.Context, node control.Node) (control.Lease, error) {
	node.Network, node.Underlay = c.cfg.Network, *c.underlay.Load()
	l, err := c.cfg.Store.Acquire(ctx, node, c.cfg.Overlay.VTEPs())
	if err == nil && !control.Compatible(c.cfg.Network, l.Subnet, l.IPv6Subnet) {
		err = fmt.Errorf("%w: lease %s is not of %v", control.ErrNetworkChanged, l.CIDRs(), c.cfg.Network.Prefixes())
	}
	return l, err
}

// holding is the state of hold. A lease without an end is renewed only when the watch asks.
type holding struct {
	lease  control.Lease
	next   time.Time     // of the next renewal; zero: none is due
	asked  time.Time     // when the last attempt was due that the watch has asked for
	gap    time.Duration // from then to the next one
	fights pace.Fights
	again  pace.Backoff
	due    pace.Notices
	gone   error // the entry was missing and could not be written when the store last answered; nil: it was not
}

// hasEnded reports whether the lease is gone from the store and its time over.
func (h *holding) hasEnded(now time.Time) bool {
	return h.gone != nil && !h.lease.Expires.IsZero() && !now.Before(h.lease.Expires)
}

// take makes l the lease and plans its renewal.
func (h *holding) take(l control.Lease, margin time.Duration) {
	h.lease, h.next, h.again, h.gone = l, time.Time{}, renewRetry(time.Hour), nil
	if !l.Expires.IsZero() {
		ttl := time.Until(l.Expires)
		h.next, h.again = time.Now().Add(renewIn(ttl, margin)), renewRetry(ttl)
	}
}

// ask plans a renewal because the watch shows that the entry is not as it should be.
func (h *holding) ask(now time.Time) {
	soon := later(now, h.asked.Add(h.gap))
	if !h.next.IsZero() && !soon.Before(h.next) {
		return
	}
	h.next, h.asked, h.gap = soon, soon, checkGap
	if h.fights.Repaired(soon, h.lease.Key()) {
		h.gap = fightGap
	}
}

// hold renews l in time, and at once when the watch shows that its entry was
// deleted or written over. It returns ErrLost if somebody else has the subnet now, ErrGone at the end
// of a lease that nobody has any more, and nil when ctx has ended or the node is drained.
//
// A store that does not answer is not a loss: the node forwards on, even past the
// end of its lease, because to stop would turn an outage of the store into one of
// the overlay. A store that answers and has no entry is another matter: the peers have withdrawn the
// subnet, and others may get it.
func (c *Controller) hold(ctx context.Context, l control.Lease) (lost error) {
	var h holding
	h.take(l, c.cfg.RenewMargin)
	for {
		timer, stop := timerAt(h.next)
		select {
		case <-ctx.Done():
			stop()
			return nil
		case <-c.drain:
			stop()
			c.giveBack(ctx, h.lease)
			return nil
		case <-c.check:
			stop()
			h.ask(time.Now())
		case <-timer:
			if lost := c.renew(ctx, &h); lost != nil {
				return lost
			}
		}
	}
}

// renew makes one attempt.
func (c *Controller) renew(ctx context.Context, h *holding) (lost error) {
	l, err := c.askToRenew(ctx, h)
	now := time.Now()
	switch {
	case err == nil:
		c.cfg.Log.DebugContext(ctx, "lease renewed", "subnet", l.CIDRs(), expiry(l))
		h.take(l, c.cfg.RenewMargin)
		c.setLease(l, func(s *Stats) { s.Renewals++ })
		return nil
	case errors.Is(err, control.ErrLost):
		c.cfg.Log.ErrorContext(ctx, "lease lost: withdrawing its subnet and acquiring another; pods on this node need new addresses",
			"subnet", h.lease.CIDRs(), "err", printable(err.Error()))
		return err
	case ctx.Err() != nil:
		return nil
	case h.hasEnded(now):
		c.cfg.Log.ErrorContext(ctx, "lease has ended and cannot be written again: withdrawing its subnet until it can be",
			"subnet", h.lease.CIDRs(), "err", printable(h.gone.Error()))
		return h.gone
	case errors.Is(err, control.ErrGone):
		h.gone = err
	}
	c.publish(func(s *Status) {
		s.Stats.RenewFails++
		s.LeaseFault.set(err, c.cfg.Fix)
	})
	if h.next = now.Add(h.again.Next()); h.hasEnded(h.next) {
		h.next = h.lease.Expires
	}
	if due, _ := h.due.Due(now, pace.Notice{Key: h.lease.Key(), Text: control.Kind(err)}); len(due) > 0 {
		c.cfg.Log.WarnContext(ctx, "renew lease: trying again", "subnet", h.lease.CIDRs(), expiry(h.lease), "err", printable(err.Error()))
	}
	return nil
}

// askToRenew asks the store. A lease that is gone is waited for no longer than it lasts.
func (c *Controller) askToRenew(ctx context.Context, h *holding) (control.Lease, error) {
	if h.gone != nil && !h.lease.Expires.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, h.lease.Expires)
		defer cancel()
	}
	return c.cfg.Store.Renew(ctx, c.macs.Load().in(h.lease))
}

// giveBack releases l, then lets the dataplane forward for a moment: what the
// peers send until they have seen the release still arrives.
func (c *Controller) giveBack(ctx context.Context, l control.Lease) {
	again := pace.Backoff{Low: 100 * time.Millisecond, High: acquireHigh}
	for {
		err := c.cfg.Store.Release(ctx, l)
		if err == nil || errors.Is(err, control.ErrLost) {
			break
		}
		if ctx.Err() != nil {
			return
		}
		c.publish(func(s *Status) { s.LeaseFault.set(err, c.cfg.Fix) })
		c.cfg.Log.WarnContext(ctx, "give lease back: trying again", "subnet", l.CIDRs(), "err", printable(err.Error()))
		if !pace.Sleep(ctx, again.Next(), nil) {
			return
		}
	}
	c.publish(func(s *Status) { s.Released, s.LeaseFault = true, Fault{} })
	c.cfg.Log.InfoContext(ctx, "lease given back", "subnet", l.CIDRs())
	pace.Sleep(ctx, drainGrace, nil)
}

// expiry is an attribute of a log line; a lease without an end has none.
func expiry(l control.Lease) slog.Attr {
	if l.Expires.IsZero() {
		return slog.Attr{}
	}
	return slog.Time("expires", l.Expires)
}

// printable makes text from the store safe to log.
func printable(s string) string { return control.Printable(s, printableBytes) }

// timerAt returns a channel that fires at t, or never if t is zero.
func timerAt(t time.Time) (<-chan time.Time, func() bool) {
	if t.IsZero() {
		return nil, func() bool { return false }
	}
	timer := time.NewTimer(time.Until(t))
	return timer.C, timer.Stop
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
