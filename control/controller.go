package control

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// Config is what a Controller needs. Every field must be set unless it says else.
type Config struct {
	Store      Store
	Overlay    Overlay // open; Run of it is the caller's business
	Node       Node    // Previous as ReadSubnetFile returned it
	Network    Network // as Store.Network returned it, and checked to be one that Overlay can carry
	MTU        int     // of the overlay device, in bytes, until SetMTU
	SubnetFile string  // path; "" writes none. It is removed while a lost lease has no successor
	IPMasq     bool    // FLANNEL_IPMASQ of the subnet file
	// WorkloadAddress gives the device the first usable address of each subnet, the one
	// that the subnet file has, too: for containers that share the daemon's network namespace.
	WorkloadAddress bool
	RenewMargin     time.Duration // before expiry; 0 is an hour
	Log             *slog.Logger
	Ready           func() // may be nil; called once, when the device is up and every peer was attempted
}

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

// defaultRenewMargin is flannel's --subnet-lease-renew-margin.
const defaultRenewMargin = time.Hour

// Controller keeps this node's lease and makes the dataplane follow the store.
// Two goroutines do the work: keep owns the lease, follow owns the RIB and is the
// only one that calls Overlay.Sync.
type Controller struct {
	cfg Config

	changed chan struct{} // keep → follow: the lease is another one now
	check   chan struct{} // follow → keep: the store's entry of the lease is not as it should be
	drain   chan struct{} // closed by Drain
	done    chan struct{} // closed when Run returns

	drainOnce sync.Once

	mu       sync.Mutex
	mtu      int
	lease    Lease
	held     bool // lease is valid
	began    bool // there has been a lease
	released bool // after Drain
	stats    Stats
}

// Stats counts what a Controller did since New.
type Stats struct {
	Leases, Bad, Rejected, Peers int    // in the store, unreadable there, not used, and used at present
	BadUpdates                   uint64 // unreadable entries received
	Syncs, SyncFailures          uint64
	Renewals, RenewFailures      uint64
	Losses                       uint64 // leases lost to somebody else
}

// New returns a Controller that does nothing before Run.
func New(cfg Config) *Controller {
	if cfg.RenewMargin <= 0 {
		cfg.RenewMargin = defaultRenewMargin
	}
	return &Controller{
		cfg:     cfg,
		mtu:     cfg.MTU,
		changed: make(chan struct{}, 1),
		check:   make(chan struct{}, 1),
		drain:   make(chan struct{}),
		done:    make(chan struct{}),
	}
}

// Run gets a lease, watches the store and keeps the dataplane in step until ctx
// ends or Drain is done; it then returns nil. Whatever else the store contains or
// fails to answer is logged and tried again, and never ends Run. It is called once.
//
// ErrNetworkChanged is its only error: the node needs a lease, its first or one for a
// lost one, and the config in the store is not Config.Network any more. To go on takes
// a Controller, and mostly a dataplane, for the new config. No lease was acquired, or
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
	if _, held := c.Lease(); !held && c.Stats().Losses > 0 {
		f.sync(ctx) // it may have ended before it saw the loss
	}
	return err
}

// Lease returns the lease that the node has now. There is none before the first
// Acquire, and between the loss of one and the next.
func (c *Controller) Lease() (l Lease, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lease, c.held
}

// Stats returns the present counters.
func (c *Controller) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// Drain gives the lease back, keeps forwarding for drainGrace while the peers see
// that and stop sending, and ends Run. It returns when Run has returned: nil if the
// store has taken the lease back or there was none. A store that does not answer is
// asked again until Run's context ends; if ctx ends before, Drain returns its error
// and the draining goes on.
func (c *Controller) Drain(ctx context.Context) error {
	c.drainOnce.Do(func() { close(c.drain) })
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held && !c.released {
		return errors.New("stopped before the lease was given back")
	}
	return nil
}

// setLease makes l the node's lease, or takes it away, and tells follow if that
// concerns the dataplane.
func (c *Controller) setLease(l Lease, held bool) {
	c.mu.Lock()
	same := c.held == held && sameLease(c.lease, l)
	c.lease, c.held, c.began = l, held, true
	c.mu.Unlock()
	if !same {
		pace.Wake(c.changed)
	}
}

// SetMTU changes the MTU of the overlay device, in bytes: the dataplane is synced and the
// subnet file written anew, unless it is that already. It may be called at any time.
func (c *Controller) SetMTU(mtu int) {
	c.mu.Lock()
	follow := c.began && c.mtu != mtu
	c.mtu = mtu
	c.mu.Unlock()
	if follow { // before the first lease, changed says that there is one
		pace.Wake(c.changed)
	}
}

func (c *Controller) currentMTU() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mtu
}

// count changes the counters.
func (c *Controller) count(change func(*Stats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.stats)
}

// self returns the node as the RIB must see it: its lease, or without one what it
// publishes, so that its own address and MAC are known as its own.
func (c *Controller) self() (l Lease, held bool) {
	if l, ok := c.Lease(); ok {
		return l, true
	}
	l, _ = c.cfg.Network.Publish(c.cfg.Node, c.cfg.Overlay.VTEPs()) // Acquire has its error
	return l, false
}
