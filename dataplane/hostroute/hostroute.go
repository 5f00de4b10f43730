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

	"github.com/mdlayher/netlink"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

const (
	// defaultResync is how often the host's routing is looked at when nothing has been noticed.
	defaultResync = time.Minute
	// settle is how long a route that is no longer wanted waits for the dataplane to
	// replace it: longer than its Sync takes.
	settle = time.Second
)

// Config says which routes to keep. Where neither is wanted, those of an earlier
// overlayd or flanneld are removed.
type Config struct {
	Log       *slog.Logger
	Direct    bool          // direct routes to on-link peers
	Blackhole bool          // a blackhole for each own subnet
	Resync    time.Duration // between two comparisons with the kernel; 0 means a minute
}

// Routes keeps the host routes of one overlay. Its methods may be called from several
// goroutines.
type Routes struct {
	cfg   Config
	rt    *rtnl.Conn
	watch *netlink.Conn

	scope atomic.Pointer[scope] // what the reader of notifications lets through
	stale atomic.Bool           // what is remembered may no longer be true
	wake  chan struct{}         // something waits for the dataplane to replace it

	mu       sync.Mutex
	closed   bool
	running  bool              // notifications are read, so that what is remembered is worth something
	last     *dataplane.Wanted // what was last asked for
	given    map[netip.Prefix]hop
	known    bool // have is what the kernel has
	have     []route
	resolver *resolver
	refused  map[netip.Prefix]bool      // subnets that the kernel takes no direct route to
	said     map[netip.Prefix]bool      // those of them that were warned of
	left     map[netip.Prefix]time.Time // subnets whose route was left to the dataplane, since when
}

// idle reports whether there is nothing to keep, once what was there is removed.
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
	watch, err := openWatch()
	if err != nil {
		rt.Close()
		return nil, fmt.Errorf("open host routes: %w", err)
	}
	r := &Routes{cfg: c, rt: rt, watch: watch, wake: make(chan struct{}, 1), resolver: newResolver(rt), said: map[netip.Prefix]bool{}}
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

// Prune implements dataplane.Part: Run removes what the dataplane has replaced.
func (r *Routes) Prune(context.Context, dataplane.Wanted) error { return nil }

// Status implements dataplane.Part.
func (r *Routes) Status() dataplane.PartStatus {
	return dataplane.PartStatus{Name: "direct routes", State: dataplane.StateOK}
}

// Sync makes the host routes be those that follow from w and the host's routing, and
// returns w for the dataplane: with the peers that direct routes lead to marked Direct, a
// peer of which this is true in part split in two. The dataplane's Sync must
// follow at once, and end before the next of this. On an error w comes back without direct peers, and what could be done
// was done. A direct route that the kernel refuses is no error: its peer is not Direct.
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
	if r.stale.Swap(false) || !r.running {
		r.forget()
	}
	if len(r.left) > 0 {
		r.known = false // the dataplane may have replaced them: see isOverdue
	}
	d, err := r.program(w, time.Now())
	r.given = d.direct
	if err != nil {
		return w, fmt.Errorf("sync host routes: %w", err)
	}
	w.Peers = d.peers
	return w, nil
}

func (r *Routes) forget() {
	r.known = false
	r.resolver.forget()
}

// decide decides about w by the host's routing.
func (r *Routes) decide(w dataplane.Wanted) decision {
	link := func(netip.Addr) int { return 0 }
	if r.cfg.Direct {
		link = r.resolver.link
	}
	return decide(w, link, r.refused)
}

// program decides about w and makes it true. What the kernel refuses by what is
// remembered is tried again by what is there, and decided otherwise if that is refused, too.
func (r *Routes) program(w dataplane.Wanted, now time.Time) (decision, error) {
	for fresh := false; ; {
		read, err := r.read(w)
		if err != nil {
			return decision{}, err
		}
		fresh = fresh || read
		d := r.decide(w)
		ops, left := plan(r.have, r.goal(w, d, now))
		refused, err := r.apply(ops)
		if len(refused) == 0 {
			r.known = r.known && err == nil
			r.leave(left)
			maps.DeleteFunc(r.said, func(dst netip.Prefix, _ bool) bool { return !r.refused[dst] })
			r.scope.Store(newScope(w, r.cfg, r.resolver.used()))
			return d, err
		}
		if !fresh {
			r.known = false
			continue
		}
		r.refuse(refused)
	}
}

// refuse notes what the kernel has refused, and says so once: it is tried again with
// every reading of the routes, of which there may be many.
func (r *Routes) refuse(refused map[netip.Prefix]error) {
	var news []netip.Prefix
	for dst := range refused {
		r.refused[dst] = true
		if !r.said[dst] {
			r.said[dst] = true
			news = append(news, dst)
		}
	}
	if len(news) > 0 {
		first := slices.MinFunc(news, netip.Prefix.Compare)
		r.cfg.Log.Warn("no direct route, encapsulating instead", "subnets", len(news), "first", first, "err", refused[first])
	}
}

func (r *Routes) goal(w dataplane.Wanted, d decision, now time.Time) goal {
	g := goal{direct: d.direct, encapsulated: map[netip.Prefix]bool{}}
	if r.cfg.Blackhole {
		g.blackholes = w.Subnets
	}
	for _, p := range d.peers {
		for _, s := range p.Subnets {
			if !p.Direct {
				g.encapsulated[s] = true
			}
		}
	}
	g.overdue = func(p netip.Prefix) bool { return r.isOverdue(p, now) }
	return g
}

// isOverdue reports whether a route has waited too long for the dataplane. It is deleted
// by Sync only, never while the dataplane may be replacing it: IPv6 would then delete the
// new one, for a nexthop object matches every gateway (seen with 6.18).
func (r *Routes) isOverdue(p netip.Prefix, now time.Time) bool {
	since, ok := r.left[p]
	return ok && now.Sub(since) >= settle
}

// leave notes which routes wait for the dataplane.
func (r *Routes) leave(subnets []netip.Prefix) {
	before := r.left
	r.left = make(map[netip.Prefix]time.Time, len(subnets))
	for _, s := range subnets {
		since, ok := before[s]
		if !ok {
			since = time.Now()
		}
		r.left[s] = since
	}
	if len(subnets) > 0 {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// agrees reports whether direct routes are those that the last Sync told of.
func (r *Routes) agrees(d decision) bool { return maps.Equal(d.direct, r.given) }
