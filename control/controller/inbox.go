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
// updates while the loop is in a Sync, so that the next round has all of them. When it has enough it makes the store
// wait, which then keeps what is missed: so nobody fills the memory by writing to the store.
type inbox struct {
	wake chan struct{} // has room for one: something is pending
	room chan struct{} // has room for one: something was taken

	mu      sync.Mutex
	pending []control.Update
	entries int // in pending
}

// maxPending is how many entries the inbox has when it takes no further update: an update is taken as a whole.
const maxPending = 1 << 14

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1), room: make(chan struct{}, 1)} }

// put adds an update when there is room. It does nothing if ctx ends first.
func (i *inbox) put(ctx context.Context, u control.Update) {
	for !i.add(u) {
		select {
		case <-i.room:
		case <-ctx.Done():
			return
		}
	}
	pace.Wake(i.wake)
}

func (i *inbox) add(u control.Update) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.entries >= maxPending {
		return false
	}
	i.pending = append(i.pending, u)
	i.entries += len(u.Leases) + len(u.Deleted) + len(u.Bad) + 1
	return true
}

// take returns what is pending, oldest first.
func (i *inbox) take() []control.Update {
	i.mu.Lock()
	defer i.mu.Unlock()
	p := i.pending
	i.pending, i.entries = nil, 0
	pace.Wake(i.room)
	return p
}

// fill moves updates from the store until ctx ends. A Store ends its channel only
// then; if one does earlier, watching begins again with a Reset.
func (i *inbox) fill(ctx context.Context, s control.Store, log *slog.Logger) {
	again := pace.Backoff{Low: 100 * time.Millisecond, High: 5 * time.Second}
	for {
		for u := range s.Watch(ctx) {
			i.put(ctx, u)
			again.Reset()
		}
		if ctx.Err() != nil || !pace.Sleep(ctx, again.Next(), nil) {
			return
		}
		log.WarnContext(ctx, "watch ended: watching again")
	}
}
