package hostroute

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// gather is the time between the first sign of a change and the look, so that one
	// cause of many changes is one look.
	gather = 100 * time.Millisecond
	// maxRest bounds how far looks are spread that take long.
	maxRest = time.Second
	// receiveBuffer is what the socket keeps of notifications, in bytes.
	receiveBuffer = 1 << 20
)

// openWatch subscribes to what a decision depends on.
func openWatch() (*netlink.Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	for _, g := range []uint32{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE} {
		if err := c.JoinGroup(g); err != nil {
			c.Close()
			return nil, fmt.Errorf("join netlink group %d: %w", g, err)
		}
	}
	_ = c.SetReadBuffer(receiveBuffer) // less only means that everything is read again more often
	return c, nil
}

// Run watches the host's routing until ctx ends, and then returns nil and leaves the
// routes in place. Within a second of a change it repairs the routes where the last Sync's
// decisions still hold. Where they do not, or the dataplane has not replaced a route that
// was left to it, it calls changed, which is to have Sync called, followed by that of the
// dataplane; it may do so itself.
func (r *Routes) Run(ctx context.Context, changed func()) error {
	defer r.Close()
	signal, failed := make(chan struct{}, 1), make(chan error, 1)
	var reader sync.WaitGroup
	reader.Go(func() { r.receive(signal, failed) })
	defer reader.Wait()
	// A deadline in the past ends the reader; after it, the reader is waited for.
	defer r.watch.SetReadDeadline(time.Unix(1, 0))
	r.setRunning()

	tick := time.NewTicker(r.cfg.Resync)
	defer tick.Stop()
	if r.cfg.idle() {
		tick.Stop()
	}
	next := newAlarm()
	defer next.timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return fmt.Errorf("watch routes: %w", err)
		case <-tick.C:
			r.stale.Store(true)
			next.in(0)
		case <-signal:
			next.in(gather)
		case <-r.wake:
			next.in(settle)
		case <-next.timer.C:
			next.start()
			if differs := r.look(); differs {
				changed()
			}
			next.done()
		}
	}
}

// alarm says when to look next.
type alarm struct {
	timer   *time.Timer
	due     time.Time // zero where the timer does not run
	started time.Time
	rested  time.Time // not before this
}

// newAlarm is due at once: for what happened before.
func newAlarm() *alarm { return &alarm{timer: time.NewTimer(0), due: time.Now()} }

// in sees to it that there is a look in d at the latest, or as soon after it as looks may be.
func (a *alarm) in(d time.Duration) {
	at := time.Now().Add(d)
	if at.Before(a.rested) {
		at = a.rested
	}
	if a.due.IsZero() || at.Before(a.due) {
		a.due = at
		a.timer.Reset(time.Until(at))
	}
}

func (a *alarm) start() { a.due, a.started = time.Time{}, time.Now() }

// done keeps looks, while others change routes all the time, to a tenth of the time.
func (a *alarm) done() {
	now := time.Now()
	a.rested = now.Add(min(10*now.Sub(a.started), maxRest))
}

func (r *Routes) setRunning() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = true
	r.stale.Store(true)
}

// receive lets through the notifications that concern us, until its deadline passes. An
// overrun of the socket ends nothing: the socket goes on, and everything is read again.
func (r *Routes) receive(signal chan<- struct{}, failed chan<- error) {
	for {
		msgs, err := r.watch.Receive()
		concerns := errors.Is(err, unix.ENOBUFS)
		switch {
		case concerns || err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed):
			return
		default:
			failed <- err
			return
		}
		scope := r.scope.Load()
		for _, m := range msgs {
			concerns = concerns || scope.concerns(uint16(m.Header.Type), uint16(m.Header.Flags), m.Data)
		}
		if concerns {
			r.stale.Store(true)
			select {
			case signal <- struct{}{}:
			default:
			}
		}
	}
}

// look makes the last Sync's decisions true again, unless they would be others now or a
// route is overdue, which it reports.
func (r *Routes) look() (differs bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil || r.closed {
		return false
	}
	if r.stale.Swap(false) {
		r.forget()
	}
	_, err := r.read(*r.last)
	if err == nil && !r.agrees(r.decide(*r.last)) {
		return true
	}
	now := time.Now()
	for subnet := range r.left {
		if r.isOverdue(subnet, now) {
			return true
		}
	}
	d, err := r.program(*r.last, now)
	if err != nil {
		r.cfg.Log.Warn("repair host routes", "err", err)
	}
	return err == nil && !r.agrees(d)
}
