package controller

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// inbox is the queue between a Watch and the loop that follows it. It takes
// updates while the loop is in a Sync, so that the next round has all of them.
type inbox struct {
	wake chan struct{} // has room for one: something is pending

	mu      sync.Mutex
	pending []control.Update
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

func (i *inbox) put(u control.Update) {
	i.mu.Lock()
	i.pending = append(i.pending, u)
	i.mu.Unlock()
	pace.Wake(i.wake)
}

// take returns what is pending, oldest first.
func (i *inbox) take() []control.Update {
	i.mu.Lock()
	defer i.mu.Unlock()
	p := i.pending
	i.pending = nil
	return p
}

// fill moves updates from the store until ctx ends. A Store ends its channel only
// then; if one does earlier, watching begins again with a Reset.
func (i *inbox) fill(ctx context.Context, s control.Store, log *slog.Logger) {
	again := pace.Backoff{Low: 100 * time.Millisecond, High: 5 * time.Second}
	for {
		for u := range s.Watch(ctx) {
			i.put(u)
			again.Reset()
		}
		if ctx.Err() != nil || !pace.Sleep(ctx, again.Next(), nil) {
			return
		}
		log.WarnContext(ctx, "watch ended: watching again")
	}
}
