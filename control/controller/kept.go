package controller

import (
	"context"
	"time"
)

// keepTime is how long peers are kept if the store has lost most leases, theirs too: a minute is promised. Each
// overlayd registers again within a few seconds; a flanneld takes up to 23 h (facts D15).
const keepTime = 65 * time.Second

// lossTime is how long losses count together: see control.RIB.Settle.
const lossTime = time.Minute

// doubtTime is how long a peer whose lease has gone is used: within it most others may follow, as leases do that expire
// at once. A node that drains forwards for longer (drainGrace).
const doubtTime = 600 * time.Millisecond

// resolve ends the use of peers whose leases have gone alone.
func (f *follower) resolve() {
	f.doubtAt = time.Time{}
	if f.rib.Doubted() > 0 {
		f.rib.Resolve()
		f.dirty = true
		f.publishLen(0)
	}
}

// noteKept logs the beginning and the end of the time in which the RIB keeps what the store has lost.
func (f *follower) noteKept(ctx context.Context) {
	if f.rib.Doubted() > 0 && f.doubtAt.IsZero() {
		f.doubtAt = time.Now().Add(doubtTime)
	}
	if f.rib.Lost() && f.calmAt.IsZero() {
		f.calmAt = time.Now().Add(lossTime)
	}
	switch kept := f.rib.Kept(); {
	case kept > 0 && f.dropAt.IsZero():
		f.dropAt = time.Now().Add(keepTime)
		f.c.cfg.Log.WarnContext(ctx, "the store has lost leases: their subnets stay reachable until their nodes register again",
			"count", kept, "for", keepTime)
	case kept == 0 && !f.dropAt.IsZero():
		f.dropAt = time.Time{}
		f.c.cfg.Log.InfoContext(ctx, "all leases that the store had lost are back")
	}
}

// drop ends that time.
func (f *follower) drop(ctx context.Context) {
	f.c.cfg.Log.WarnContext(ctx, "dropping leases that the store has lost: their nodes have not come back", "count", f.rib.Kept())
	f.rib.DropKept()
	f.noteLeases()
	f.dirty, f.dropAt = true, time.Time{}
	f.publishLen(0)
}
