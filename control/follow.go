package control

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/subnetfile"
)

// follower turns what the store says into Overlay.Sync calls.
type follower struct {
	c     *Controller
	rib   *RIB
	whole bool // a Reset was applied: the RIB is complete
	dirty bool // something changed since the last Sync

	done    *dataplane.Wanted // what the last Sync has made wholly true; nil if it has not
	again   pace.Backoff
	retryAt time.Time                // zero: nothing to retry
	dropAt  time.Time                // zero: the RIB keeps nothing that the store has lost
	yieldAt time.Time                // zero: no other lease has a MAC of the own one
	failure string                   // of the last Sync, to see that it is another one
	failed  map[dataplane.VTEP]error // peers that the last Sync could not program
	limits  []EntryStatus            // what does not work with the peers, as last published
	hadKept bool                     // the Status has peers that are kept

	file subnetfile.Keeper

	badDue, rejectedDue, limitDue, familyDue, syncDue, fileDue, macDue pace.Notices
}

func newFollower(c *Controller) *follower {
	rib := NewRIB(c.cfg.Network)
	rib.Underlay = c.cfg.Node.Underlay
	f := &follower{c: c, rib: rib, file: subnetfile.Keeper{Path: c.cfg.SubnetFile, Wrote: c.cfg.WroteSubnetFile},
		again: pace.Backoff{Low: 100 * time.Millisecond, High: 30 * time.Second}}
	f.rib.sharedMACs = c.cfg.SharedMACs
	return f
}

// run waits for the first lease and then follows the store until ctx ends. There is
// no Sync before the first Reset: one without the peers would withdraw all that a
// predecessor of this process has left working.
func (f *follower) run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-f.c.changed:
	}
	in := newInbox()
	var group errgroup.Group
	group.Go(func() error { in.fill(ctx, f.c.cfg.Store, f.c.cfg.Log); return nil })
	f.loop(ctx, in)
	group.Wait() // it returns nil, when ctx has ended
}

func (f *follower) loop(ctx context.Context, in *inbox) {
	look, stopLook := f.file.Ticks()
	defer stopLook()
	for {
		retry, stop := timerAt(f.retryAt)
		drop, stopDrop := timerAt(f.dropAt)
		yield, stopYield := timerAt(f.yieldAt)
		select {
		case <-ctx.Done():
			stop()
			stopDrop()
			stopYield()
			return
		case <-in.wake:
			f.apply(ctx, in.take())
		case <-f.c.changed:
			f.dirty = true
		case <-retry:
			f.dirty = true
		case <-yield:
			f.dirty = true
		case <-drop:
			f.drop(ctx)
		case <-look:
			f.restoreSubnetFile(ctx)
		}
		stop()
		stopDrop()
		stopYield()
		if f.dirty {
			f.sync(ctx)
		}
	}
}

// apply takes updates over and has the lease checked if its entry is not as it should be.
func (f *follower) apply(ctx context.Context, updates []Update) {
	bad, kept := 0, f.rib.kept
	for _, u := range updates {
		if !f.whole && u.Reset {
			f.whole, f.dirty = true, true
		}
		if f.rib.Apply(u) {
			f.dirty = true
		}
		bad += len(u.Bad)
	}
	f.dirty = f.dirty || f.rib.kept != kept // for the Status
	f.publishLen(bad)
	if bad > 0 {
		f.logBad(ctx)
	}
	f.noteKept(ctx)
	if s := f.c.Status(); f.whole && s.Held && !f.rib.holds(s.Lease) {
		pace.Wake(f.c.check)
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

// keepTime is how long peers are kept that the store has lost with most others. Each
// overlayd registers again within a few seconds; a flanneld takes up to 23 h (facts D15).
const keepTime = time.Minute

// noteKept logs the begin and the end of the time in which the RIB keeps what the store has lost.
func (f *follower) noteKept(ctx context.Context) {
	switch kept := f.rib.kept; {
	case kept > 0 && f.dropAt.IsZero():
		f.dropAt = time.Now().Add(keepTime)
		f.c.cfg.Log.WarnContext(ctx, "the store has lost most leases: their subnets stay reachable until their nodes register again",
			"count", kept, "for", keepTime)
	case kept == 0 && !f.dropAt.IsZero():
		f.dropAt = time.Time{}
		f.c.cfg.Log.InfoContext(ctx, "all leases that the store had lost are back")
	}
}

// drop ends that time.
func (f *follower) drop(ctx context.Context) {
	f.c.cfg.Log.WarnContext(ctx, "dropping leases that the store has lost: their nodes have not come back", "count", f.rib.kept)
	f.rib.drop()
	f.dirty, f.dropAt = true, time.Time{}
	f.publishLen(0)
}

// sync makes the dataplane and the subnet file what they should be now, and has
// it done again later if that did not succeed wholly.
//
// Without a lease, which is after a loss, the device has no address and the routes
// to the peers stay: they are the peers' right and not this node's, and to put
// thousands of them back would only lengthen the gap. The subnet file is removed, and
// first, so that no CNI plugin gives out addresses that are somebody else's now; a
// restart then knows no previous subnet, which this one was no more.
func (f *follower) sync(ctx context.Context) {
	self, held := f.c.self()
	var left error
	if !held {
		left = f.file.Remove()
	}
	if !f.whole || ctx.Err() != nil {
		return
	}
	peers, rejected := f.rib.Peers(self)
	f.contend(ctx, self, held)
	w := f.wanted(self, peers)
	f.dirty = false
	report := peerReport{peers: peers, kept: f.rib.keptSubnets(), rejected: entriesOf(f.c.Status().Rejected, rejected), limits: entriesOf(f.limits, f.rib.Limits())}
	f.logFamilies(ctx, self, report)
	f.logEntries(ctx, &f.rejectedDue, withoutFamilies(withoutRivals(report.rejected)), "lease not used")
	f.logEntries(ctx, &f.limitDue, withoutFamilies(report.limits), "source of a peer's packets not accepted")
	if left == nil && f.done != nil && sameWanted(*f.done, w) {
		f.publishPeers(report)
		return // nothing changed for the dataplane, for example one more lease is refused
	}
	f.done, f.retryAt = nil, time.Time{}
	err := f.c.cfg.Overlay.Sync(ctx, w)
	if ctx.Err() != nil {
		return
	}
	failed, down := dataplane.PeerErrors(err)
	report.down = down != nil
	if down == nil && held {
		down = f.writeSubnetFile(self, w.MTU)
	}
	down = errors.Join(down, left)
	f.retryAfter(ctx, failed, down)
	if len(failed) == 0 && down == nil {
		f.done = &w
	}
	f.publishSync(report, failed, down, held)
}

// wanted returns what Overlay is to make true.
func (f *follower) wanted(self Lease, peers []dataplane.Peer) dataplane.Wanted {
	w := dataplane.Wanted{VTEPs: vtepsOf(self), Subnets: subnetsOf(self), Networks: f.c.cfg.Network.Prefixes(), MTU: f.c.Status().MTU, Peers: peers}
	w.Underlay = f.rib.Underlay.Inside(w.Networks, peers)
	if f.c.cfg.WorkloadAddress {
		w.Addrs = workloadAddrs(w.Subnets)
	}
	return w
}

// publishSync publishes how a Sync went.
func (f *follower) publishSync(report peerReport, failed []*dataplane.PeerError, down error, held bool) {
	if len(failed) > 0 {
		report.failed = make(map[dataplane.VTEP]error, len(failed))
		for _, e := range failed {
			report.failed[e.Peer.VTEP] = e.Err
		}
	}
	f.failed, f.limits, f.hadKept = report.failed, report.limits, len(report.kept) > 0
	statuses := report.statuses(f.c.Status().Peers, time.Now())
	becameReady := false
	f.c.publish(func(s *Status) {
		s.setPeers(report, statuses)
		s.SyncFault.set(down)
		s.Stats.Syncs++
		if len(failed) > 0 || down != nil {
			s.Stats.SyncFailures++
		}
		becameReady = down == nil && held && !s.Ready
		s.Ready = s.Ready || becameReady
	})
	if becameReady && f.c.cfg.Ready != nil {
		f.c.cfg.Ready()
	}
}

// publishPeers publishes what is known without another Sync, unless it is the same.
func (f *follower) publishPeers(report peerReport) {
	report.failed = f.failed
	last := f.c.Status()
	if slices.Equal(last.Rejected, report.rejected) && slices.Equal(f.limits, report.limits) && len(report.kept) == 0 && !f.hadKept {
		return
	}
	f.limits, f.hadKept = report.limits, len(report.kept) > 0
	statuses := report.statuses(last.Peers, time.Now())
	f.c.publish(func(s *Status) { s.setPeers(report, statuses) })
}

func (s *Status) setPeers(report peerReport, statuses []PeerStatus) {
	s.Peers, s.Rejected = statuses, report.rejected
	s.Stats.Peers, s.Stats.Rejected = len(report.peers), len(report.rejected)
}

// sameWanted compares all but what one Controller never changes, and what follows from the rest.
func sameWanted(a, b dataplane.Wanted) bool {
	return a.MTU == b.MTU && slices.Equal(a.VTEPs, b.VTEPs) && slices.Equal(a.Subnets, b.Subnets) && slices.EqualFunc(a.Peers, b.Peers, func(p, q dataplane.Peer) bool {
		return p.VTEP == q.VTEP && p.Source == q.Source && slices.Equal(p.Subnets, q.Subnets)
	})
}

// vtepsOf returns what a lease publishes.
func vtepsOf(l Lease) []dataplane.VTEP {
	return slices.DeleteFunc([]dataplane.VTEP{l.vtep(false), l.vtep(true)}, func(v dataplane.VTEP) bool { return !v.Addr.IsValid() })
}

// subnetsOf returns the own subnets that the dataplane is to have.
func subnetsOf(l Lease) []netip.Prefix {
	return slices.DeleteFunc([]netip.Prefix{l.Subnet, l.IPv6Subnet}, func(p netip.Prefix) bool { return !p.IsValid() })
}

// workloadAddrs returns the first usable address of each subnet, alone.
func workloadAddrs(subnets []netip.Prefix) []netip.Prefix {
	var addrs []netip.Prefix
	for _, p := range subnets {
		a := subnetfile.FirstHost(p).Addr()
		addrs = append(addrs, netip.PrefixFrom(a, a.BitLen()))
	}
	return addrs
}

func (f *follower) writeSubnetFile(l Lease, mtu int) error {
	n := f.c.cfg.Network
	return f.file.Write(subnetfile.File{Network: n.Network, Subnet: l.Subnet,
		IPv6Network: n.IPv6Network, IPv6Subnet: l.IPv6Subnet, MTU: mtu, IPMasq: f.c.cfg.IPMasq})
}

// restoreSubnetFile writes the subnet file again if somebody removed or changed it.
func (f *follower) restoreSubnetFile(ctx context.Context) {
	restored, err := f.file.Restore()
	if err != nil {
		due, _ := f.fileDue.Due(time.Now(), pace.Notice{Text: printable(err.Error())})
		for _, n := range due {
			f.c.cfg.Log.ErrorContext(ctx, "restore subnet file: trying again", "err", n.Text)
		}
	}
	if restored {
		f.c.cfg.Log.WarnContext(ctx, "subnet file restored: it was removed or changed", "file", f.file.Path)
		f.c.publish(func(s *Status) { s.Stats.FileRepairs++ })
	}
}

// retryAfter logs what failed and sets the time of the next attempt. Another
// failure than before begins with short delays again.
func (f *follower) retryAfter(ctx context.Context, failed []*dataplane.PeerError, down error) {
	if len(failed) == 0 && down == nil {
		f.again.Reset()
		f.failure = ""
		return
	}
	var faults []pace.Notice
	if down != nil {
		faults = append(faults, pace.Notice{Text: printable(down.Error())})
	}
	for _, e := range failed {
		faults = append(faults, pace.Notice{Key: e.Peer.Addr.String(), Text: printable(e.Error())})
	}
	var all strings.Builder
	for _, n := range faults {
		all.WriteString(n.Text)
	}
	if all.String() != f.failure {
		f.again.Reset()
		f.failure = all.String()
	}
	f.retryAt = time.Now().Add(f.again.Next())
	due, more := f.syncDue.Due(time.Now(), faults...)
	for _, n := range due {
		f.c.cfg.Log.ErrorContext(ctx, "sync: trying again", "err", n.Text)
	}
	f.logMore(ctx, "sync", more)
}

// badEntries returns what cannot be read, by key.
func (f *follower) badEntries() []EntryStatus {
	now := time.Now()
	entries := make([]EntryStatus, 0, len(f.rib.bad))
	for _, b := range f.rib.bad {
		fault := Fault{Reason: Reason(b.Err), Err: printable(b.Err.Error()), Since: now}
		entries = append(entries, EntryStatus{Key: printable(b.Key), Fault: fault})
	}
	slices.SortFunc(entries, func(a, b EntryStatus) int { return strings.Compare(a.Key, b.Key) })
	return entries
}

// entriesOf returns what the RIB says, which is sorted by key, with the times of before.
func entriesOf(before []EntryStatus, rejected []Rejection) []EntryStatus {
	now := time.Now()
	entries := make([]EntryStatus, 0, len(rejected))
	for _, r := range rejected {
		fault := Fault{Reason: Reason(r.Err), Err: printable(r.Err.Error()), Since: now}
		entries = append(entries, EntryStatus{Key: r.Key, Subnet: r.Subnet, Node: r.Node, Fault: fault})
	}
	return entryStatuses(before, entries)
}

// logBad logs the entries of the present Status that cannot be read.
func (f *follower) logBad(ctx context.Context) {
	f.logEntries(ctx, &f.badDue, f.c.Status().Bad, "entry ignored: not a lease")
}

// logEntries logs those of entries that are due, by their subnets or else by their keys.
func (f *follower) logEntries(ctx context.Context, notices *pace.Notices, entries []EntryStatus, text string) {
	current := make([]pace.Notice, 0, len(entries))
	field := "key"
	for _, e := range entries {
		n := pace.Notice{Key: e.Key, Text: e.Err}
		if e.Subnet.IsValid() {
			field, n.Key = "subnet", e.Subnet.String()
		}
		current = append(current, n)
	}
	due, more := notices.Due(time.Now(), current...)
	for _, n := range due {
		f.c.cfg.Log.WarnContext(ctx, text, field, n.Key, "err", n.Text)
	}
	what, _, _ := strings.Cut(text, ":")
	f.logMore(ctx, what, more)
}

func (f *follower) logMore(ctx context.Context, what string, more int) {
	if more > 0 {
		f.c.cfg.Log.WarnContext(ctx, what+": and more", "count", more)
	}
}
