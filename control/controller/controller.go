package controller

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// Overlay is what a Controller keeps in step with the store: everything that carries this
// network on this host.
type Overlay interface {
	// VTEPs returns, per family, what to publish about this node.
	VTEPs() []dataplane.VTEP
	// Sync makes exactly w true. It is idempotent, and programs all it can even when it
	// returns an error. An error that consists of *dataplane.PeerError only (see
	// dataplane.PeerErrors) means that the device is up and every peer was attempted.
	Sync(ctx context.Context, w dataplane.Wanted) error
}

// Controller keeps this node's lease and makes the dataplane follow the store.
// Two goroutines do the work: keep owns the lease, follow owns the RIB and is the
// only one that calls Overlay.Sync.
type Controller struct {
	cfg Config

	changed chan struct{} // keep → follow: the lease is another one now
	check   chan struct{} // follow → keep: the store's entry of the lease is not as it should be
	drain   chan struct{} // closed by Drain
	done    chan struct{} // closed when Run returns
	pings   chan struct{} // taken by whoever follows the store, between two of its steps

	drainOnce sync.Once

	underlay atomic.Pointer[control.Underlay] // what this host needs of it; see SetUnderlay

	macs atomic.Pointer[ownMACs] // follow → keep: to publish the lease with; nil: with those that it has

	mu     sync.Mutex // of whoever replaces status
	status atomic.Pointer[Status]
}

// New returns a Controller that does nothing before Run.
func New(cfg Config) *Controller {
	c := &Controller{
		cfg:     cfg.withDefaults(),
		changed: make(chan struct{}, 1),
		check:   make(chan struct{}, 1),
		drain:   make(chan struct{}),
		done:    make(chan struct{}),
		pings:   make(chan struct{}),
	}
	c.underlay.Store(&c.cfg.Node.Underlay)
	c.status.Store(&Status{MTU: cfg.MTU})
	return c
}

// Run gets a lease, watches the store and keeps the dataplane in step until ctx
// ends or Drain is done; it then returns nil. Whatever else the store contains or
// fails to answer is logged and tried again, and never ends Run. It is called once.
//
// ErrCloned is its error if another host lives that has this node's ID and address: whoever mends that starts
// the daemon again. ErrNetworkChanged is its only other error: the node needs a lease, its first or one for a
// lost one, and the config in the store has not been Config.Network for a third of a second. To go on, the caller
// needs a new Controller, and mostly a new dataplane, for the new config. No lease was acquired, or
// one at most, which the next Controller takes up. A config that changes while the lease
// lasts is not looked at.
//
// The lease stays in the store, so that a restarted node has the same subnet, and
// the dataplane is left as it is. A lease that was lost is withdrawn from it and
// from the subnet file.
func (c *Controller) Run(ctx context.Context) error {
	defer close(c.done)
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	f := newFollower(c)
	f.resume()
	var group errgroup.Group
	group.Go(func() error {
		defer cancel()
		return c.keep(inner)
	})
	group.Go(func() error {
		f.run(inner)
		return nil
	})
	err := group.Wait()
	if s := c.Status(); !s.Held && s.Stats.Losses > 0 {
		f.sync(ctx) // it may have ended before it saw the loss
	}
	return err
}

// Drain gives the lease back, keeps forwarding for drainGrace while the peers see
// that and stop sending, and ends Run. It returns when Run has returned: nil if the
// store has taken the lease back or this node had no lease. A store that does not answer is
// asked again until Run's context ends; if ctx ends before, Drain returns its error
// and the draining goes on.
func (c *Controller) Drain(ctx context.Context) error {
	c.drainOnce.Do(func() { close(c.drain) })
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
	}
	if s := c.Status(); s.Held && !s.Released {
		return errors.New("stopped before the lease was given back")
	}
	return nil
}

// Ping waits until the loop that follows the store and calls Overlay.Sync comes round, which shows that it is not stuck, or
// until Run has returned. If ctx ends before, Ping returns its error.
func (c *Controller) Ping(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case c.pings <- struct{}{}:
	case <-c.done:
	}
	return nil
}

// setLease makes l the node's lease and tells follow if that concerns the dataplane.
func (c *Controller) setLease(l control.Lease, change func(*Stats)) {
	same := false
	c.publish(func(s *Status) {
		same = s.Held && s.Lease.SamePeer(l)
		s.Lease, s.Held, s.LeaseFault = l, true, Fault{}
		change(&s.Stats)
	})
	if !same {
		pace.Wake(c.changed)
	}
}

// loseLease takes the lease away, which somebody else has now, or which has ended.
func (c *Controller) loseLease(err error) {
	c.macs.Store(nil)
	c.publish(func(s *Status) {
		s.Held = false
		s.Stats.Losses++
		s.LeaseFault.set(err, c.cfg.Fix)
	})
	pace.Wake(c.changed)
}

// SetMTU changes the MTU of the overlay device, in bytes: the dataplane is synced and the
// subnet file written again, unless it is that already. It may be called at any time.
func (c *Controller) SetMTU(mtu int) {
	follow := false
	c.publish(func(s *Status) {
		follow = s.MTU != mtu && s.Lease != control.Lease{}
		s.MTU = mtu
	})
	if follow { // before the first lease, changed says that there is one
		pace.Wake(c.changed)
	}
}

// SetUnderlay changes what this host needs of the underlay: it is decided again which leases can be used. It may be
// called at any time. An own subnet that holds an address which is needed now stays until it is lost; the next one is chosen by u.
func (c *Controller) SetUnderlay(u control.Underlay) {
	c.underlay.Store(&u)
	if c.Status().Lease != (control.Lease{}) { // before the first lease, changed says that there is one
		pace.Wake(c.changed)
	}
}

// self returns the node as the RIB must see it: its lease, or without one what it
// publishes, so that its own address and MAC are known as its own.
func (c *Controller) self() (l control.Lease, held bool) {
	if s := c.Status(); s.Held {
		return s.Lease, true
	}
	l, _ = c.cfg.Network.Publish(c.cfg.Node, c.cfg.Overlay.VTEPs()) // Acquire has its error
	return l, false
}
