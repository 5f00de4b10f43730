package overlay

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/sharedport"
	"github.com/overlayd/overlayd/dataplane"
)

// Forwarding is the part that carries the packets.
type Forwarding struct {
	dataplane.Dataplane
	Mode     fit.Mode
	Shared   *sharedport.Port // with other networks; nil: it has its own
	giveBack func()           // of Shared
	quit     func()           // ends Run before its context ends
	quitted  <-chan struct{}  // closed by quit
	ended    chan struct{}    // closed when Run has returned
}

// NewForwarding returns the part of a dataplane that is open. shared is what it shares with other networks, or nil; giveBack
// gives that back when the part is closed.
func NewForwarding(d dataplane.Dataplane, mode fit.Mode, shared *sharedport.Port, giveBack func()) *Forwarding {
	quitted := make(chan struct{})
	return &Forwarding{d, mode, shared, giveBack, sync.OnceFunc(func() { close(quitted) }), quitted, make(chan struct{})}
}

// Run runs the dataplane until ctx ends or Stop is called.
func (f *Forwarding) Run(ctx context.Context, again func()) error {
	defer close(f.ended)
	ctx, cancel := context.WithCancel(ctx)
	var group errgroup.Group
	group.Go(func() error {
		defer cancel()
		return f.Dataplane.Run(ctx, again)
	})
	select {
	case <-ctx.Done():
	case <-f.quitted:
	}
	cancel()
	return group.Wait()
}

// Stop ends Run before its context ends, waits for that and closes the dataplane. Nothing else of the overlay ends.
func (f *Forwarding) Stop() error {
	f.quit()
	<-f.ended
	return f.Close()
}

// Close closes the dataplane and gives back what it shares with others.
func (f *Forwarding) Close() error {
	err := f.Dataplane.Close()
	f.giveBack()
	return err
}
