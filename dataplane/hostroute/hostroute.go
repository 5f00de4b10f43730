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
	Direct    bool          // direct routes to on-link peers
	Only      bool          // nothing else leads to the peers: Sync has an error for each that gets no direct route
	Blackhole bool          // a blackhole for each own subnet
	Resync    time.Duration // between two comparisons with the kernel; 0 means a minute
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

	mu       sync.Mutex
	closed   bool
	running  bool                 // notifications are read, so that routes can be remembered
	last     *dataplane.Wanted    // of the last Sync
	given    map[netip.Prefix]hop // the direct routes that the last Sync returned
	known    bool                 // have is what the kernel has
	have     []route
	resolver *resolver
	refused  map[netip.Prefix]bool  // subnets that get no direct route: refused by the kernel, or routed by others
	reasons  map[netip.Prefix]error // why the kernel refused
	lost     error                  // Config.Only: the peers without a direct route, of the last decision
	notices  pace.Notices
}

// idle reports whether no routes are wanted: once old ones are gone, there is nothing to do.
func (c Config) idle() bool { return !c.Direct && !c.Blackhole }

var errClosed = errors.New("host routes are closed")

// Open connects to the network namespace of the calling thread. It changes nothing.
func Open(c Config) (*Routes, error) {
	if c.Resync == 0 {
		c.Resync = defaultResync
	}
	rt, err := rtnl.Open()
	if err != nil {
		return nil, fmt.Errorf("open host routes: %w", err)
	}
	w, err := watch.Open(watch.Groups{Protocol: unix.NETLINK_ROUTE, Must: []int{unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE}})
	if err != nil {
		rt.Close()
		return nil, fmt.Errorf("open host routes: %w", err)
	}
	r := &Routes{cfg: c, rt: rt, watch: w, report: dataplane.NewReporter(c.Log, "direct routes"), resolver: newResolver(rt)}
	r.scope.Store(&scope{direct: c.Direct})
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
// was done. If the kernel refuses a direct route, the peer is not Direct; that is no error but
// with Config.Only, where each peer that is not Direct is a *dataplane.PeerError.
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
		if slices.ContainsFunc(p.Subnets, func(s netip.Prefix) bool { return r.refused[s] }) {
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
	refused := r.refused
	r.known = false
	if _, err := r.read(w); err != nil {
		return fmt.Errorf("prune host routes: %w", err)
	}
	maps.Copy(r.refused, refused)
	_, err := r.apply(stale(r.have, g))
	r.publish(g, err)
	if err != nil {
		r.known = false
		return fmt.Errorf("prune host routes: %w", err)
	}
	return nil
}

func (r *Routes) forget() {
	r.known = false
	r.resolver.forget()
}

// decide returns the direct routes for w that the host's routing allows.
func (r *Routes) decide(w dataplane.Wanted) decision {
	if !r.cfg.Direct {
		return decision{peers: w.Peers}
	}
	return decide(w, r.resolver.link, r.refused)
}

// program decides about w, and adds and replaces what is needed: ops. If the kernel refuses
// something by the remembered routes, they are read again; if it still does, the subnet gets no
// direct route.
func (r *Routes) program(w dataplane.Wanted) (d decision, ops []op, err error) {
	for fresh := false; ; {
		read, err := r.read(w)
		if err != nil {
			return decision{}, nil, err
		}
		fresh = fresh || read
		d := r.decide(w)
		g := r.goal(w, d.direct)
		ops := plan(r.have, g)
		refused, err := r.apply(ops)
		if len(refused) == 0 {
			r.lost = r.without(d.peers)
			r.known = r.known && err == nil
			r.scope.Store(newScope(w, r.cfg, r.resolver.used()))
			r.publish(g, err)
			return d, ops, err
		}
		if !fresh {
			r.known = false
			continue
		}
		r.refuse(refused)
	}
}

// refuse notes what the kernel has refused. It is tried again whenever the routes are read, but
// logged once.
func (r *Routes) refuse(refused map[netip.Prefix]error) {
	var notices []pace.Notice
	for _, dst := range slices.SortedFunc(maps.Keys(refused), netip.Prefix.Compare) {
		r.refused[dst], r.reasons[dst] = true, refused[dst]
		notices = append(notices, pace.Notice{Key: dst.String(), Text: refused[dst].Error()})
	}
	if due, more := r.notices.Due(time.Now(), notices...); len(due) > 0 {
		r.cfg.Log.Warn("no direct route, encapsulating instead", "subnets", len(due)+more, "first", due[0].Key, "err", due[0].Text)
	}
}

func (r *Routes) goal(w dataplane.Wanted, direct map[netip.Prefix]hop) goal {
	g := goal{direct: direct}
	if r.cfg.Blackhole {
		g.blackholes = w.Subnets
	}
	return g
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
