package hostroute

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/watch"
)

// defaultResync is how often the routes are compared if no notification comes.
const defaultResync = time.Minute

// Config says which routes to keep. Routes that are not wanted, of an earlier overlayd or
// flanneld, are removed.
type Config struct {
	Log       *slog.Logger
	Direct    bool // direct routes to on-link peers
	Only      bool // nothing else leads to the peers: Sync has an error for each that gets no direct route
	Blackhole bool // a blackhole for each own subnet
	// Settle is how long after Open direct routes of an earlier run stay to subnets of nobody: when the network config has
	// changed, peers publish their leases again a moment later.
	Settle time.Duration
	Resync time.Duration // between two comparisons with the kernel; 0 means a minute
	Deaf   bool          // notice no changes of others but by Resync, which is a few seconds then: for tests
}

// Routes keeps the host routes of one overlay. Its methods may be called from several
// goroutines.
type Routes struct {
	cfg   Config
	rt    *rtnl.Conn
	watch *watch.Subscription

	report *dataplane.Reporter
	scope  atomic.Pointer[scope] // selects notifications
	dirty  atomic.Bool           // the remembered routes may be wrong

	settled time.Time // when Config.Settle is over

	mu         sync.Mutex
	closed     bool
	running    bool                 // notifications are read, so that routes can be remembered
	last       *dataplane.Wanted    // of the last Sync
	given      map[netip.Prefix]hop // the direct routes that the last Sync returned
	known      bool                 // have is what the kernel has
	have       []route
	resolver   *resolver
	refused    map[netip.Prefix]bool  // subnets that get no direct route: refused by the kernel, or routed by others
	reasons    map[netip.Prefix]error // why the kernel refused
	taken      map[netip.Prefix][]int // links of others' routes, by subnet
	unfinished bool                   // something could not be made: it is tried again
	lost       error                  // Config.Only: the peers without a direct route, of the last decision
	notices    pace.Notices
}

// idle reports whether no routes are wanted: once old ones are gone, there is nothing to do.
func (c Config) idle() bool { return !c.Direct && !c.Blackhole }

var errClosed = errors.New("host routes are closed")

// Open connects to the network namespace of the calling thread. It changes nothing.
func Open(c Config) (*Routes, error) {
	switch {
	case c.Deaf:
		c.Resync = watch.DeafResync
	case c.Resync == 0:
		c.Resync = defaultResync
	}
	rt, err := rtnl.Open()
	if err != nil {
		return nil, fmt.Errorf("open host routes: %w", err)
	}
	w, err := watch.Open(watch.Groups{Protocol: unix.NETLINK_ROUTE, Must: []int{unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE},
		May: []int{unix.RTNLGRP_NEXTHOP}, Deaf: c.Deaf})
	if err != nil {
		rt.Close()
		return nil, fmt.Errorf("open host routes: %w", err)
	}
	r := &Routes{cfg: c, rt: rt, watch: w, settled: time.Now().Add(c.Settle), report: dataplane.NewReporter(c.Log, "direct routes"), resolver: newResolver(rt)}
	r.scope.Store(&scope{direct: c.Direct})
	if c.Deaf {
		r.report.Polls(c.Resync)
	}
	return r, nil
}

// Close releases the sockets; the routes stay, so that traffic goes on. Run does it at
// its end; it may be called more than once.
func (r *Routes) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	r.watch.Close()
	r.rt.Close()
	return nil
}

// Status implements dataplane.Part.
func (r *Routes) Status() dataplane.PartStatus { return r.report.Status() }

// Sync adds the host routes that follow from w and the host's routing, and returns w for the
// dataplane: peers with direct routes are marked Direct, and a peer with direct routes to some
// of its subnets only is split in two. The dataplane's Sync must follow at once, then Prune,
// before the next Sync. On an error w is returned without direct peers, and as much as possible
// was done. If the kernel refuses a direct route, the peer is not Direct. That is an error only
// with Config.Only: then each peer that is not Direct is a *dataplane.PeerError.
func (r *Routes) Sync(ctx context.Context, w dataplane.Wanted) (dataplane.Wanted, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return w, errClosed
	}
	if err := ctx.Err(); err != nil {
		return w, err
	}
	if l := r.last; l == nil || !slices.Equal(l.Networks, w.Networks) || !slices.Equal(l.Subnets, w.Subnets) {
		r.known = false // other routes are ours now
	}
	r.last = &w
	if r.dirty.Swap(false) || !r.running {
		r.forget()
	}
	d, _, err := r.program(w)
	r.given = d.direct
	if err != nil {
		err = fmt.Errorf("sync host routes: %w", err)
		r.report.Publish(dataplane.StateFailed, err)
		return w, err
	}
	w.Peers = d.peers
	return w, r.lost
}

// without returns an error for each peer that no direct route leads to.
func (r *Routes) without(peers []dataplane.Peer) error {
	if !r.cfg.Only {
		return nil
	}
	var errs []error
	for _, p := range peers {
		why := dataplane.ErrOffLink
		if r.isRefused(p) {
			why = dataplane.ErrRouteTaken
		}
		if !p.Direct {
			errs = append(errs, &dataplane.PeerError{Peer: p, Err: why})
		}
	}
	return errors.Join(errs...)
}

// Prune implements dataplane.Part. It removes the direct routes that are no longer wanted and
// that the dataplane has not replaced by its own, and blackholes that are no longer wanted.
func (r *Routes) Prune(_ context.Context, w dataplane.Wanted) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errClosed
	}
	g := r.goal(w, r.given)
	if !r.known || len(stale(r.have, g)) == 0 {
		return nil
	}
	// The dataplane may have replaced them. A removal by what was there before would then, in
	// IPv6, remove the new route: a nexthop object matches every gateway (kernel 6.18).
	refused, reasons := r.refused, r.reasons
	r.known = false
	if _, err := r.read(w); err != nil {
		return fmt.Errorf("prune host routes: %w", err)
	}
	maps.Copy(r.refused, refused)
	maps.Copy(r.reasons, reasons)
	_, err := r.apply(stale(r.have, g))
	r.publish(g, err)
	if err != nil {
		r.known = false
		return fmt.Errorf("prune host routes: %w", err)
	}
	return nil
}

// isRefused reports whether a subnet of a peer could have no direct route, because the kernel refused it or
// somebody else has a route to it.
func (r *Routes) isRefused(p dataplane.Peer) bool {
	return slices.ContainsFunc(p.Subnets, func(s netip.Prefix) bool { return r.refused[s] })
}

func (r *Routes) forget() {
	r.known = false
	r.resolver.forget()
}

// publish makes the routes the part's status.
func (r *Routes) publish(g goal, err error) {
	state := dataplane.StateOf(err)
	if err == nil && len(r.reasons) > 0 {
		first := slices.MinFunc(slices.Collect(maps.Keys(r.reasons)), netip.Prefix.Compare)
		state, err = dataplane.StateDegraded, fmt.Errorf("no direct route to %d subnets: %w", len(r.reasons), r.reasons[first])
	}
	if err == nil && r.lost != nil {
		state, err = dataplane.StateDegraded, r.lost
	}
	if r.cfg.idle() {
		r.report.Publish(state, err)
		return
	}
	blackholes := 0
	for _, b := range r.have {
		if b.blackhole && b.owner == ours && slices.Contains(g.blackholes, b.dst) {
			blackholes++
		}
	}
	r.report.Publish(state, err,
		dataplane.ObjectStatus{Kind: kindDirect, Wanted: len(g.direct) + len(r.reasons), Have: len(g.direct)},
		dataplane.ObjectStatus{Kind: kindBlackhole, Wanted: len(g.blackholes), Have: blackholes})
}

// agrees reports whether d has the direct routes that the last Sync returned.
func (r *Routes) agrees(d decision) bool { return maps.Equal(d.direct, r.given) }
