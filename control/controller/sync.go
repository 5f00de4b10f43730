package controller

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/subnetfile"
)

// sync makes the dataplane and the subnet file what they should be now, and has
// it done again later if that did not succeed wholly.
//
// Without a lease, which is after a loss, the device has no address and the routes
// to the peers stay: they are the peers' right and not this node's, and to put
// thousands of them back would only lengthen the gap. The subnet file is removed, and
// first, so that no CNI plugin gives out addresses that are somebody else's now. After a
// restart the node then knows no previous subnet, and this one is not its own any more.
func (f *follower) sync(ctx context.Context) {
	self, held := f.c.self()
	var left error
	if !held {
		left = f.file.Remove()
	}
	if !f.whole || ctx.Err() != nil {
		return
	}
	f.rib.Underlay = *f.c.underlay.Load()
	peers, rejected := f.rib.Peers(self)
	f.contend(ctx, self, held)
	w := f.wanted(self, peers)
	f.dirty = false
	entries, news := f.rejectedEntries(rejected, time.Now())
	report := peerReport{peers: peers, names: f.rib.Names(), kept: f.rib.KeptSubnets(), rejected: entries, refused: f.rib.Refused(), limits: entriesOf(f.limits, f.rib.Limits())}
	f.logFamilies(ctx, self, report)
	if news {
		f.logContest(ctx, entries)
		f.logEntries(ctx, &f.rejectedDue, withoutTold(entries), "lease not used")
	}
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
	if report.down = down != nil; !report.down {
		f.peerLog.note(ctx, time.Now(), peers)
	}
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
func (f *follower) wanted(self control.Lease, peers []dataplane.Peer) dataplane.Wanted {
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
	f.failed, f.limits, f.names, f.hadKept = report.failed, report.limits, report.names, len(report.kept) > 0
	before := f.c.Status().Peers
	statuses, withdrawn := report.statuses(before, time.Now()), report.withdrawn(before)
	becameReady := false
	f.c.publish(func(s *Status) {
		s.setPeers(report, statuses)
		s.Stats.Withdrawn += withdrawn
		s.SyncFault.set(down, f.c.cfg.Fix)
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
	if slices.Equal(last.Rejected, report.rejected) && slices.Equal(f.limits, report.limits) && slices.Equal(f.names, report.names) && len(report.kept) == 0 && !f.hadKept {
		if last.Stats.Rejected != report.refused { // of those that are too many to be named
			f.c.publish(func(s *Status) { s.Stats.Rejected = report.refused })
		}
		return
	}
	f.limits, f.names, f.hadKept = report.limits, report.names, len(report.kept) > 0
	statuses := report.statuses(last.Peers, time.Now())
	f.c.publish(func(s *Status) { s.setPeers(report, statuses) })
}

func (s *Status) setPeers(report peerReport, statuses []PeerStatus) {
	s.Peers, s.Rejected = statuses, report.rejected
	s.Stats.Peers, s.Stats.Rejected = len(report.peers), report.refused
}

// sameWanted compares all but what one Controller never changes, and what follows from the rest.
func sameWanted(a, b dataplane.Wanted) bool {
	return a.MTU == b.MTU && slices.Equal(a.VTEPs, b.VTEPs) && slices.Equal(a.Subnets, b.Subnets) && slices.Equal(a.Underlay, b.Underlay) && slices.EqualFunc(a.Peers, b.Peers, func(p, q dataplane.Peer) bool {
		return p.VTEP == q.VTEP && p.Source == q.Source && slices.Equal(p.Subnets, q.Subnets)
	})
}

// vtepsOf returns what a lease publishes.
func vtepsOf(l control.Lease) []dataplane.VTEP {
	return slices.DeleteFunc([]dataplane.VTEP{l.VTEP(false), l.VTEP(true)}, func(v dataplane.VTEP) bool { return !v.Addr.IsValid() })
}

// subnetsOf returns the own subnets that the dataplane is to have.
func subnetsOf(l control.Lease) []netip.Prefix {
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

// maxDown is the longest pause before the next Sync after one that failed as a whole.
const maxDown = 2 * time.Second

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
	pause := f.again.Next()
	if down != nil { // an obstacle on this host, such as a full disk, may go at any time
		pause = min(pause, maxDown)
	}
	f.retryAt = time.Now().Add(pause)
	due, more := f.syncDue.Due(time.Now(), faults...)
	for _, n := range due {
		attrs := []any{"err", n.Text}
		if n.Key == "" {
			if fix := f.c.cfg.Fix(down); fix != "" {
				attrs = append(attrs, "fix", fix)
			}
		}
		f.c.cfg.Log.ErrorContext(ctx, "sync: trying again", attrs...)
	}
	f.logMore(ctx, "sync", more)
}
