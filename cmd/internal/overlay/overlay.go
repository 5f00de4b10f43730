// Package overlay runs the parts that carry one network on a host. Each part is a dataplane.Part. Package parts
// has the list of them; this package does not know what they are.
//
// # The order of the parts
//
// Parts are opened, synced and started in the order of the list; they are pruned and closed in the reverse one.
//
// # One Sync
//
//  1. The controller has a new lease or new peers, or an MTU: controller.Controller calls Overlay.Sync.
//     When routing on the host changes, a part asks for a Sync of what was last wanted: Overlay.resync.
//  2. Sync of each part, in order. It adds and changes, and passes the rest on to the next part. For example, the direct
//     routes mark their peers, and the dataplane then makes no route to those.
//  3. Prune of each part, in reverse order. It removes what is no longer wanted, except if a later
//     part failed as a whole: that part may still rely on it.
//  4. The errors are joined. An error of one peer does not affect the other peers. An error of an optional part (Spec.Lack) is
//     logged once and makes that part degraded (slot.go).
package overlay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// Overlay is everything that carries one network on this host: a list of parts. Their order is
// the order in which they are opened, synced and run; they are pruned and closed in the reverse one.
// For control it is one thing, a controller.Overlay.
type Overlay struct {
	log     *slog.Logger
	parts   []*slot
	forward *Forwarding   // one of parts; nil: this overlay carries no packets
	again   chan struct{} // somebody asks for a Sync of all parts
	retry   pace.Backoff  // of such a Sync
	notices pace.Notices  // of its failures

	mu   sync.Mutex // one Sync at a time
	last *dataplane.Wanted

	closed sync.Once

	reached atomic.Pointer[dataplane.Wanted] // what forward was last given; without it, what the last part left; nil before that
}

// RetryPeriod is the time, before jitter, between two tries of what an obstacle on this host keeps from working:
// the obstacle may have gone.
const RetryPeriod = 1500 * time.Millisecond

// Open opens the parts in their order. It returns the error of a required part that cannot be opened, and closes those
// before it. attrs returns the attributes of a log line about an error.
func Open(log *slog.Logger, attrs func(error) []any, specs []Spec) (*Overlay, error) {
	o := &Overlay{log: log, again: make(chan struct{}, 1), retry: pace.Backoff{Low: time.Second, High: RetryPeriod}}
	for _, spec := range specs {
		s := &slot{spec: spec, log: log, attrs: attrs}
		if err := s.open(); err != nil {
			o.Close()
			return nil, err
		}
		o.parts = append(o.parts, s)
		if f, ok := s.part.(*Forwarding); ok {
			o.forward = f
		}
	}
	return o, nil
}

// VTEPs implements controller.Overlay.
func (o *Overlay) VTEPs() []dataplane.VTEP {
	if o.forward == nil {
		return nil
	}
	return o.forward.VTEPs()
}

// Resume implements dataplane.Resumer, for the parts that do, in order: the guard admits what the part that forwards lets in.
func (o *Overlay) Resume(w dataplane.Wanted) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.resume(w)
}

// resume is Resume, unless something was synced already.
func (o *Overlay) resume(w dataplane.Wanted) {
	if o.last != nil {
		return
	}
	for _, s := range o.parts {
		p := s.part
		if f, ok := p.(*Forwarding); ok {
			p = f.Dataplane
		}
		if r, ok := p.(dataplane.Resumer); ok {
			r.Resume(w)
		}
	}
}

// Sync implements controller.Overlay.
func (o *Overlay) Sync(ctx context.Context, w dataplane.Wanted) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.resume(w)
	o.last = &w
	return o.sync(ctx, w)
}

// sync has each part add and change what it is wanted to, in order and each with what the one
// before it has left, and then remove the rest, in reverse order. A part removes nothing if one
// after it failed as a whole, because that one may still need it, unless the failed part is Apart.
func (o *Overlay) sync(ctx context.Context, w dataplane.Wanted) error {
	given := make([]dataplane.Wanted, len(o.parts))
	errs := make([]error, len(o.parts))
	failed, whole := -1, false // the last part that failed as a whole and is not Apart; whether any part failed as a whole
	for i, s := range o.parts {
		given[i] = w
		if s.part == nil {
			continue
		}
		w, errs[i] = s.part.Sync(ctx, w)
		if _, err := dataplane.PeerErrors(errs[i]); err != nil {
			if whole = true; !s.spec.Apart {
				failed = i
			}
		} else if o.forward != nil && s.part == o.forward {
			o.reached.Store(&given[i])
		}
	}
	if o.forward == nil && !whole {
		o.reached.Store(&w)
	}
	for i, s := range slices.Backward(o.parts) {
		if s.part == nil || failed > i {
			continue
		}
		if err := s.part.Prune(ctx, given[i]); err != nil {
			errs[i] = errors.Join(errs[i], fmt.Errorf("prune %s: %w", s.spec.Name, err))
		}
	}
	for i, s := range o.parts {
		if s.part != nil && ctx.Err() == nil { // else the end of the session is what failed
			errs[i] = s.judge(errs[i])
		}
	}
	return errors.Join(errs...)
}

// Run carries traffic and repairs until ctx ends or a part cannot go on. Traffic ends last.
func (o *Overlay) Run(ctx context.Context) error {
	defer o.Close()
	run := func(ctx context.Context, p dataplane.Part) error { return p.Run(ctx, func() { pace.Wake(o.again) }) }
	rest := func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		for _, s := range o.parts {
			if s.part != nil && s.part != o.forward {
				group.Go(func() error { return run(ctx, s.part) })
			}
		}
		group.Go(func() error { o.resync(ctx); return nil })
		return group.Wait()
	}
	if o.forward == nil {
		return rest(ctx)
	}
	return pace.Last(ctx, rest, func(ctx context.Context) error { return run(ctx, o.forward) })
}

// resync syncs all parts with what was last wanted whenever one of them asks for it, until ctx
// ends. It retries what fails as a whole; a peer that fails is retried by the part that refused it.
func (o *Overlay) resync(ctx context.Context) {
	var timer <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.again:
		case <-timer:
		}
		peers, err := o.syncLast(ctx)
		timer = nil
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			timer = time.After(o.retry.Next())
			if due, _ := o.notices.Due(time.Now(), pace.Notice{Key: "resync", Text: err.Error()}); len(due) > 0 {
				o.log.Warn("resync failed: trying again until it works", "err", err)
			}
			continue
		case len(peers) > 0:
			if due, _ := o.notices.Due(time.Now(), pace.Notice{Key: "peers", Text: peers[0].Error()}); len(due) > 0 {
				o.log.Warn("resync: peers cannot be reached", "peers", len(peers), "first", peers[0])
			}
		}
		o.retry.Reset()
	}
}

// syncLast is Sync with what was last wanted.
func (o *Overlay) syncLast(ctx context.Context) (peers []*dataplane.PeerError, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last == nil {
		return nil, nil
	}
	return dataplane.PeerErrors(o.sync(ctx, *o.last))
}

// Mode returns the mode of the part that forwards; empty without one.
func (o *Overlay) Mode() fit.Mode {
	if o.forward == nil {
		return ""
	}
	return o.forward.Mode
}

// Forwarding returns the part that carries the packets; nil: this overlay carries none.
func (o *Overlay) Forwarding() *Forwarding { return o.forward }

// Reached returns what the part that forwards was given last and did not refuse as a whole; without such a part, what
// the last part left. It is nil before that. Nobody may change it.
func (o *Overlay) Reached() *dataplane.Wanted { return o.reached.Load() }

// TryHold keeps everybody from syncing the overlay until LetGo is called. It returns false at once if a Sync runs, or
// somebody holds it already.
func (o *Overlay) TryHold() bool { return o.mu.TryLock() }

// LetGo ends what TryHold began.
func (o *Overlay) LetGo() { o.mu.Unlock() }

// Status returns how the parts are, in their order.
func (o *Overlay) Status() []dataplane.PartStatus {
	out := make([]dataplane.PartStatus, 0, len(o.parts))
	for _, s := range o.parts {
		out = append(out, s.status())
	}
	return out
}

// Close releases what Open acquired; Run does so at its end. Everything that the parts made
// stays. It may be called more than once.
func (o *Overlay) Close() {
	o.closed.Do(func() {
		for _, s := range slices.Backward(o.parts) {
			if s.part == nil {
				continue
			}
			if err := s.part.Close(); err != nil {
				o.log.Debug("cannot close part of the overlay", "part", s.spec.Name, "err", err)
			}
		}
	})
}
