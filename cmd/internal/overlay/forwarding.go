package overlay

import (
	"context"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/sharedport"
	"github.com/overlayd/overlayd/dataplane"
)

// Forwarding is the part that carries the packets. It can outlive its overlay, and be a part of the next one: see Keep.
type Forwarding struct {
	dataplane.Dataplane
	Mode     fit.Mode
	Shared   *sharedport.Port // with other networks; nil: it has its own
	giveBack func()           // of Shared

	begin sync.Once
	quit  chan struct{} // closed by Stop, and when an overlay ends that does not leave it
	stop  func()        // closes quit
	ended chan struct{} // closed when the dataplane's Run has returned
	err   error         // what that returned; set before ended is closed
	kept  atomic.Bool   // the overlay leaves it running
}

// NewForwarding returns the part of a dataplane that is open. shared is what it shares with other networks, or nil; giveBack
// gives that back when the part is closed.
func NewForwarding(d dataplane.Dataplane, mode fit.Mode, shared *sharedport.Port, giveBack func()) *Forwarding {
	f := &Forwarding{Dataplane: d, Mode: mode, Shared: shared, giveBack: giveBack, quit: make(chan struct{}), ended: make(chan struct{})}
	f.stop = sync.OnceFunc(func() { close(f.quit) })
	return f
}

// Run runs the dataplane until ctx ends or Stop is called. If it is kept then, it returns and the dataplane goes on.
func (f *Forwarding) Run(ctx context.Context, again func()) error {
	f.begin.Do(func() { go f.run(context.WithoutCancel(ctx), again) }) // Stop waits for it
	select {
	case <-f.ended:
		return f.err
	case <-ctx.Done():
	}
	if f.kept.Load() {
		return nil
	}
	f.stop()
	<-f.ended
	return f.err
}

// run is the life of the dataplane, which may be longer than that of an overlay.
func (f *Forwarding) run(ctx context.Context, again func()) {
	defer close(f.ended)
	ctx, cancel := context.WithCancel(ctx)
	var group errgroup.Group
	group.Go(func() error {
		defer cancel()
		return f.Dataplane.Run(ctx, again)
	})
	select {
	case <-f.quit:
	case <-ctx.Done():
	}
	cancel()
	f.err = group.Wait()
}

// Keep has the overlay leave the dataplane running when it ends: from then on it belongs to whoever calls Keep, who gives it to
// another overlay after Taken, or calls Stop. Only a dataplane whose Run does not call again can be kept.
func (f *Forwarding) Keep() { f.kept.Store(true) }

// Kept reports whether Keep was called since the last call of Taken.
func (f *Forwarding) Kept() bool { return f.kept.Load() }

// Taken has the next overlay, whose part it becomes, end it as usual. It is not ok if the dataplane has ended meanwhile.
func (f *Forwarding) Taken() (ok bool) {
	select {
	case <-f.ended:
		return false
	default:
		f.kept.Store(false)
		return true
	}
}

// Stop ends Run before its context ends, waits for that and closes the dataplane. Nothing else of the overlay ends.
func (f *Forwarding) Stop() error {
	f.stop()
	f.begin.Do(func() { close(f.ended) }) // it was never run
	<-f.ended
	f.kept.Store(false)
	return f.Close()
}

// Close closes the dataplane and gives back what it shares with others, unless it is kept.
func (f *Forwarding) Close() error {
	if f.kept.Load() {
		return nil
	}
	err := f.Dataplane.Close()
	f.giveBack()
	return err
}
