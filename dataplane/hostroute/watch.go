package hostroute

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/watch"
)

const (
	// gather is the time between the first sign of a change and the look, so that one
	// cause of many changes is one look.
	gather = 10 * time.Millisecond
	// between is the least time between two looks.
	between = 100 * time.Millisecond
	// maxPause bounds how far looks are spread if they take long.
	maxPause = 500 * time.Millisecond
)

// Run watches the host's routing until ctx ends, and then returns nil and leaves the routes in
// place. Within a second of a change it repairs the routes if the decisions of the last Sync
// still hold. If they do not, or a route must be removed, it calls again: Sync and Prune of all
// parts are needed. again may call them itself.
func (r *Routes) Run(ctx context.Context, again func()) error {
	defer r.Close()
	r.setRunning()
	r.watch.Wake() // something may have changed before
	defer time.AfterFunc(time.Until(r.settled), r.watch.Wake).Stop()
	loop := watch.Loop{
		Concerns: r.concerns,
		Forget:   func() { r.dirty.Store(true) },
		Look: func(context.Context) error {
			if r.look() {
				again()
			}
			return nil
		},
		Spread:  pace.Spread{Gather: gather, Between: between, Rest: maxPause},
		Resync:  r.cfg.Resync,
		Pending: r.retry,
	}
	if r.cfg.idle() {
		loop.Resync = 0
	}
	return r.watch.Run(ctx, loop)
}

func (r *Routes) setRunning() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = true
	r.dirty.Store(true)
}

func (r *Routes) concerns(h unix.NlMsghdr, body []byte) bool {
	concerns := r.scope.Load().concerns(h.Type, h.Flags, body)
	if concerns {
		r.dirty.Store(true)
	}
	return concerns
}

// retry reports whether something could not be made as wanted, and has the next look read everything then.
func (r *Routes) retry() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unfinished {
		r.dirty.Store(true)
	}
	return r.unfinished
}

// look restores the routes of the last Sync. It reports whether Sync and Prune are needed: the
// decisions would differ now, or a route must be removed, which must not happen while the
// dataplane replaces it.
func (r *Routes) look() (differs bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil || r.closed {
		return false
	}
	if r.dirty.Swap(false) {
		r.forget()
	}
	_, err := r.read(*r.last)
	if err == nil && !r.agrees(r.decide(*r.last)) {
		return true
	}
	d, ops, err := r.program(*r.last)
	if err != nil {
		r.warn(err)
		return false
	}
	var changes []dataplane.Change
	for _, o := range ops {
		changes = append(changes, o.change())
	}
	r.report.Repaired(changes...)
	return !r.agrees(d) || len(stale(r.have, r.goal(*r.last, d.direct))) > 0
}

// warn reports why routes cannot be repaired now.
func (r *Routes) warn(err error) {
	r.unfinished = true
	r.report.Publish(dataplane.StateFailed, err)
	if due, _ := r.notices.Due(time.Now(), pace.Notice{Key: "repair", Text: err.Error()}); len(due) > 0 {
		r.cfg.Log.Warn("cannot repair host routes now: trying again until it works", "err", err)
	}
}
