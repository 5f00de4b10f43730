package control

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/overlayd/overlayd/dataplane/pace"
)

const (
	checkGap     = time.Second // between renewals that the watch asks for
	drainGrace   = time.Second // from the release of the lease to the end of Run
	acquireHigh  = 2 * time.Second
	takenHigh    = 500 * time.Millisecond // while another node has the address, which it may leave at any time
	repeatLoudly = time.Minute            // of an unchanged reason to have no lease
	loudBytes    = 1024                   // of that reason, which may say what to do
)

// keep owns the lease: it acquires one, renews it, and starts again when it is
// lost. It returns nil when ctx ends or the node is drained, and ErrNetworkChanged.
func (c *Controller) keep(ctx context.Context) error {
	node := c.cfg.Node
	for {
		l, ok, err := c.acquire(ctx, node)
		if !ok {
			return err
		}
		c.cfg.Log.InfoContext(ctx, "lease acquired", "subnet", l.CIDRs(), "public_ip", l.Identity(), l.expiry())
		c.setLease(l, func(*Stats) {})
		lost := c.hold(ctx, l)
		if lost == nil {
			return nil
		}
		c.loseLease(lost)
		// Somebody else's now: to take it back by its MAC would begin a fight for it.
		node.Previous = slices.DeleteFunc(slices.Clone(node.Previous), func(p netip.Prefix) bool {
			return p == l.Subnet || p == l.IPv6Subnet
		})
	}
}

// acquire asks for a lease until there is one. ok is false if ctx ends or the node is
// drained first, or if there can be none: ErrNetworkChanged.
func (c *Controller) acquire(ctx context.Context, node Node) (l Lease, ok bool, err error) {
	again := pace.Backoff{Low: 100 * time.Millisecond, High: acquireHigh}
	reported := pace.Notices{Repeat: repeatLoudly}
	for {
		l, err := c.tryAcquire(ctx, node)
		switch {
		case err == nil:
			return l, true, nil
		case ctx.Err() != nil:
			return Lease{}, false, nil
		case errors.Is(err, ErrNetworkChanged):
			return Lease{}, false, err
		}
		c.publish(func(s *Status) { s.LeaseFault.set(err) })
		if due, _ := reported.Due(time.Now(), pace.Notice{Text: Kind(err)}); len(due) > 0 {
			c.cfg.Log.ErrorContext(ctx, "no lease: trying again", "err", printableTo(err.Error(), loudBytes))
		}
		pause := again.Next()
		if errors.Is(err, ErrTaken) {
			pause = min(pause, takenHigh)
		}
		if !pace.Sleep(ctx, pause, c.drain) {
			return Lease{}, false, nil
		}
	}
}

// tryAcquire makes one attempt. It reads the config first, so that no lease is written
// of a network that this Controller cannot use.
func (c *Controller) tryAcquire(ctx context.Context, node Node) (Lease, error) {
	n, err := c.cfg.Store.Network(ctx)
	switch {
	case err != nil:
		return Lease{}, err
	case n != c.cfg.Network:
		return Lease{}, fmt.Errorf("%w: it was %+v, now it is %+v", ErrNetworkChanged, c.cfg.Network, n)
	}
	l, err := c.cfg.Store.Acquire(ctx, node, c.cfg.Overlay.VTEPs())
	if err == nil && !Compatible(c.cfg.Network, l.Subnet, l.IPv6Subnet) { // it changed between the two calls
		err = fmt.Errorf("%w: lease %s is not of %v", ErrNetworkChanged, l.Key(), c.cfg.Network.Prefixes())
	}
	return l, err
}

// holding is the state of hold. A lease without an end is renewed only when the watch asks.
type holding struct {
	lease Lease
	next  time.Time // of the next renewal; zero: none is due
	last  time.Time // of the last attempt
	again pace.Backoff
	due   pace.Notices
}

// take makes l the lease and plans its renewal.
func (h *holding) take(l Lease, margin time.Duration) {
	h.lease, h.next, h.again = l, time.Time{}, renewRetry(time.Hour)
	if !l.Expires.IsZero() {
		ttl := time.Until(l.Expires)
		h.next, h.again = time.Now().Add(renewIn(ttl, margin)), renewRetry(ttl)
	}
}

// hold renews l in time, and at once when the watch shows that its entry was
// deleted or written over. It returns ErrLost if somebody else has the subnet now, and nil when
// ctx has ended or the node is drained.
//
// A store that does not answer is not a loss: the node forwards on, even past the
// end of its lease, because to stop would turn an outage of the store into one of
// the overlay.
func (c *Controller) hold(ctx context.Context, l Lease) (lost error) {
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
			if soon := later(time.Now(), h.last.Add(checkGap)); h.next.IsZero() || soon.Before(h.next) {
				h.next = soon
			}
		case <-timer:
			if lost := c.renew(ctx, &h); lost != nil {
				return lost
			}
		}
	}
}

// renew makes one attempt.
func (c *Controller) renew(ctx context.Context, h *holding) (lost error) {
	l, err := c.cfg.Store.Renew(ctx, c.macs.Load().in(h.lease))
	h.last = time.Now()
	switch {
	case err == nil:
		c.cfg.Log.DebugContext(ctx, "lease renewed", "subnet", l.CIDRs(), l.expiry())
		h.take(l, c.cfg.RenewMargin)
		c.setLease(l, func(s *Stats) { s.Renewals++ })
		return nil
	case errors.Is(err, ErrLost):
		c.cfg.Log.ErrorContext(ctx, "lease lost: withdrawing its subnet and acquiring another; pods on this node need new addresses",
			"subnet", h.lease.CIDRs(), "err", printable(err.Error()))
		return err
	case ctx.Err() != nil:
		return nil
	}
	c.publish(func(s *Status) {
		s.Stats.RenewFails++
		s.LeaseFault.set(err)
	})
	h.next = h.last.Add(h.again.Next())
	if due, _ := h.due.Due(h.last, pace.Notice{Key: h.lease.Key(), Text: Kind(err)}); len(due) > 0 {
		c.cfg.Log.WarnContext(ctx, "renew lease: trying again", "subnet", h.lease.CIDRs(), h.lease.expiry(), "err", printable(err.Error()))
	}
	return nil
}

// giveBack releases l, then lets the dataplane forward for a moment: what the
// peers send until they have seen the release still arrives.
func (c *Controller) giveBack(ctx context.Context, l Lease) {
	again := pace.Backoff{Low: 100 * time.Millisecond, High: acquireHigh}
	for {
		err := c.cfg.Store.Release(ctx, l)
		if err == nil || errors.Is(err, ErrLost) {
			break
		}
		if ctx.Err() != nil {
			return
		}
		c.publish(func(s *Status) { s.LeaseFault.set(err) })
		c.cfg.Log.WarnContext(ctx, "give lease back: trying again", "subnet", l.CIDRs(), "err", printable(err.Error()))
		if !pace.Sleep(ctx, again.Next(), nil) {
			return
		}
	}
	c.publish(func(s *Status) { s.Released, s.LeaseFault = true, Fault{} })
	c.cfg.Log.InfoContext(ctx, "lease given back", "subnet", l.CIDRs())
	pace.Sleep(ctx, drainGrace, nil)
}

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
