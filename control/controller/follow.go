package controller

import (
	"bytes"
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/subnetfile"
)

// follower turns what the store says into Overlay.Sync calls.
type follower struct {
	c     *Controller
	rib   *control.RIB
	whole bool // a Reset was applied: the RIB is complete
	dirty bool // something changed since the last Sync

	done    *dataplane.Wanted // what the last Sync has made wholly true; nil if it has not
	again   pace.Backoff
	retryAt time.Time                // zero: nothing to retry
	dropAt  time.Time                // zero: the RIB keeps nothing that the store has lost
	doubtAt time.Time                // when it is known whether more goes than what has gone just now; zero: nothing has
	calmAt  time.Time                // when what the store has lost does not count any more; zero: it has lost nothing
	shown   string                   // key of the own entry that the store has shown last
	ownAt   time.Time                // when it is not waited any longer for the store to show the own entry; zero: it has
	yieldAt time.Time                // zero: no other lease has a MAC of the own one
	failure string                   // of the last Sync, to see that it is another one
	failed  map[dataplane.VTEP]error // peers that the last Sync could not program
	limits  []EntryStatus            // what does not work with the peers, as last published
	names   []string                 // of the nodes of the peers' subnets, as last published
	hadKept bool                     // the Status has peers that are kept

	rejections []control.Rejection // of the last Sync
	rejected   []EntryStatus       // which say the same
	rejectedAt time.Time           // when it was looked last which of them are to be logged

	file          subnetfile.Keeper
	fileFights    pace.Fights // over the file
	peerLog       peerLog
	leasesAt      time.Time // of the next write of the leases file; zero: none is due
	leasesWritten time.Time // last

	badDue, rejectedDue, limitDue, familyDue, syncDue, fileDue, leasesDue, macDue, contestDue pace.Notices

	contested bool // see logContest
}

func newFollower(c *Controller) *follower {
	f := &follower{c: c, rib: control.NewRIB(c.cfg.Network), file: subnetfile.Keeper{Path: c.cfg.SubnetFile, Wrote: c.cfg.WroteSubnetFile},
		again: pace.Backoff{Low: 100 * time.Millisecond, High: 30 * time.Second}}
	f.rib.SharedMACs = c.cfg.SharedMACs
	f.peerLog.log = c.cfg.Log
	f.noteLengths(f.recall())
	return f
}

// run follows the store until ctx ends. The first Sync waits for the lease and for the first Reset, which are read at
// once: a Sync without the peers would withdraw all that a predecessor of this process has left working.
func (f *follower) run(ctx context.Context) {
	in := newInbox()
	var group errgroup.Group
	group.Go(func() error { in.fill(ctx, f.c.cfg.Store, f.c.cfg.Log); return nil })
	if f.awaitLease(ctx, in) {
		f.loop(ctx, in)
		if !f.leasesAt.IsZero() {
			f.writeLeases(ctx)
		}
	}
	group.Wait() // it returns nil, when ctx has ended
}

// awaitLease applies what the store says until there is a lease. It returns false if ctx ends first.
func (f *follower) awaitLease(ctx context.Context, in *inbox) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-f.c.changed:
			f.leaseChanged()
			return true
		case <-f.c.pings:
		case <-in.wake:
			f.apply(ctx, in.take())
		}
	}
}

func (f *follower) loop(ctx context.Context, in *inbox) {
	look, stopLook := f.file.Ticks()
	defer stopLook()
	for {
		if f.dirty {
			f.sync(ctx)
		}
		alarm, stop := timerAt(f.next())
		select {
		case <-ctx.Done():
			stop()
			return
		case <-in.wake:
			f.apply(ctx, in.take())
		case <-f.c.changed:
			f.leaseChanged()
		case <-f.c.pings:
		case <-alarm:
			f.due(ctx, time.Now())
		case <-look:
			f.restoreSubnetFile(ctx)
		}
		stop()
	}
}

// next returns when something is due; zero: nothing is.
func (f *follower) next() (first time.Time) {
	for _, at := range [...]time.Time{f.retryAt, f.yieldAt, f.dropAt, f.doubtAt, f.calmAt, f.leasesAt, f.ownAt, f.peerLog.at} {
		if first.IsZero() || !at.IsZero() && at.Before(first) {
			first = at
		}
	}
	for _, h := range f.heldBack() {
		if at := h.Next(); first.IsZero() || !at.IsZero() && at.Before(first) {
			first = at
		}
	}
	return first
}

// due does what is due now.
func (f *follower) due(ctx context.Context, now time.Time) {
	is := func(at time.Time) bool { return !at.IsZero() && !now.Before(at) }
	f.dirty = f.dirty || is(f.retryAt) || is(f.yieldAt)
	if is(f.doubtAt) {
		f.resolve()
	}
	if is(f.dropAt) {
		f.drop(ctx)
	}
	if is(f.calmAt) {
		f.rib.Settle()
		f.calmAt = time.Time{}
		f.noteLeases()
	}
	if is(f.leasesAt) {
		f.writeLeases(ctx)
	}
	if is(f.ownAt) {
		f.checkOwn(true)
	}
	if is(f.peerLog.at) {
		f.peerLog.rest(ctx)
	}
	f.tellMore(ctx, now)
}

// apply takes updates over and has the lease checked if its entry is not as it should be.
func (f *follower) apply(ctx context.Context, updates []control.Update) {
	bad, kept, again := 0, f.rib.Kept(), false
	for _, u := range updates {
		if u.Reset {
			f.dirty = f.dirty || !f.whole
			again, f.whole = f.whole, true
		}
		changed := f.rib.Apply(u) && !f.isEcho(u)
		if f.dirty = f.dirty || changed; changed || u.Reset {
			f.noteLeases()
		}
		bad += len(u.Bad)
	}
	f.dirty = f.dirty || f.rib.Kept() != kept // for the Status
	f.publishLen(bad)
	if bad > 0 {
		f.logBad(ctx)
	}
	f.noteKept(ctx)
	if f.whole {
		f.checkOwn(again)
	}
}

// leaseChanged takes over that there is a lease, another one, or none.
func (f *follower) leaseChanged() {
	f.dirty = true
	if f.whole {
		f.checkOwn(false)
	}
}

// isEcho reports whether u says nothing but that the store has the own lease: that needs no Sync.
func (f *follower) isEcho(u control.Update) bool {
	s := f.c.Status()
	alone := !u.Reset && len(u.Leases) == 1 && len(u.Deleted)+len(u.Bad) == 0
	return s.Held && alone && u.Leases[0].Key() == s.Lease.Key() && bytes.Equal(u.Leases[0].Value(), s.Lease.Value())
}

// ownPatience is how long it may take until the store shows the entry that it has just taken.
const ownPatience = time.Second

// checkOwn has the lease checked if the store has lost or changed its entry. The first list may have been read before the
// entry was written: that it lacks the entry counts if the entry was shown since, and otherwise after a while.
func (f *follower) checkOwn(again bool) {
	s := f.c.Status()
	key := s.Lease.Key()
	switch {
	case !s.Held:
		f.ownAt = time.Time{}
	case f.rib.Holds(s.Lease):
		f.shown, f.ownAt = key, time.Time{}
	case again || f.shown == key || !f.rib.Lacks(s.Lease):
		f.ownAt = time.Time{}
		pace.Wake(f.c.check)
	case f.ownAt.IsZero():
		f.ownAt = time.Now().Add(ownPatience)
	}
}

// publishLen publishes how many entries the store has, if that has changed. bad is how many
// more could not be read.
func (f *follower) publishLen(bad int) {
	leases, unreadable := f.rib.Len()
	last := f.c.Status().Stats
	if bad == 0 && last.Leases == leases && last.Bad == unreadable {
		return
	}
	entries := f.c.Status().Bad
	if bad > 0 || last.Bad != unreadable {
		entries = entryStatuses(entries, f.badEntries())
	}
	f.c.publish(func(s *Status) {
		s.Stats.BadUpdates += uint64(bad)
		s.Stats.Leases, s.Stats.Bad, s.Bad = leases, unreadable, entries
	})
}
