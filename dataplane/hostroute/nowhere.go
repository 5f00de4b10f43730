package hostroute

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/watch"
)

// Nowhere keeps routes beneath all others that make overlay addresses unreachable: what is for an address to which no
// route leads must not leave by the default route, in clear.
//
//	unreachable 10.5.0.0/16 proto 211 metric 4294967294
//
// There is one for each network, or, if that holds addresses of the underlay, one for each lease in it which holds none.
type Nowhere struct {
	leases func() bool
	resync time.Duration
	rt     *rtnl.Conn
	watch  *watch.Subscription
	report *dataplane.Reporter

	mu     sync.Mutex
	closed bool
	wanted []netip.Prefix        // nil before the first Sync
	have   map[netip.Prefix]bool // nil: not known
	err    error
}

var _ dataplane.Part = (*Nowhere)(nil)

// OpenNowhere connects to the network namespace of the calling thread. Of c it needs Log and Deaf. leases says at each Sync
// whether the dataplane has a route to each lease, and none to whole networks. It changes nothing.
func OpenNowhere(c Config, leases func() bool) (*Nowhere, error) {
	rt, err := rtnl.Open()
	if err != nil {
		return nil, fmt.Errorf("open unreachable routes: %w", err)
	}
	w, err := watch.Open(watch.Groups{Protocol: unix.NETLINK_ROUTE, Must: []int{unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE}, Deaf: c.Deaf})
	if err != nil {
		rt.Close()
		return nil, fmt.Errorf("open unreachable routes: %w", err)
	}
	n := &Nowhere{leases: leases, resync: defaultResync, rt: rt, watch: w, report: dataplane.NewReporter(c.Log, "unreachable")}
	if c.Deaf {
		n.resync = watch.DeafResync
		n.report.Polls(n.resync)
	}
	return n, nil
}

// nowhere returns the destinations. Leases are left out if a dataplane may have one route to a whole network, which must
// come first.
func nowhere(w dataplane.Wanted, leases bool) (dsts []netip.Prefix) {
	var mixed []netip.Prefix
	for _, n := range w.Networks {
		if slices.ContainsFunc(w.Underlay, n.Overlaps) {
			mixed = append(mixed, n)
		} else {
			dsts = append(dsts, n)
		}
	}
	if !leases {
		return dsts
	}
	add := func(leases []netip.Prefix) {
		for _, s := range leases {
			holds := func(u netip.Prefix) bool { return s.Bits() <= u.Bits() && s.Contains(u.Addr()) }
			if rtnl.Inside(s, mixed) && s == s.Masked() && !slices.ContainsFunc(w.Underlay, holds) {
				dsts = append(dsts, s)
			}
		}
	}
	add(w.Subnets)
	for _, p := range w.Peers {
		add(p.Subnets)
	}
	return dsts
}

func nowhereRoute(dst netip.Prefix) netlink.Route {
	return netlink.Route{Dst: rtnl.IPNet(dst), Type: unix.RTN_UNREACHABLE, Protocol: rtnl.RouteProtocol, Priority: rtnl.NowhereMetric}
}

// listNowhere lists those routes of every overlay.
func listNowhere(rt *rtnl.Conn) (dsts []netip.Prefix, err error) {
	routes, err := rt.HostRoutes()
	for _, r := range routes {
		if r.Type == unix.RTN_UNREACHABLE && r.Priority == rtnl.NowhereMetric {
			dsts = append(dsts, rtnl.Prefix(r.Dst))
		}
	}
	return dsts, err
}

// Sync implements dataplane.Part.
func (n *Nowhere) Sync(_ context.Context, w dataplane.Wanted) (dataplane.Wanted, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return w, errClosed
	}
	n.wanted = append([]netip.Prefix{}, nowhere(w, n.leases())...)
	n.add(nil)
	return w, n.err
}

// add makes what is missing, and calls made for each. The caller holds mu.
func (n *Nowhere) add(made func(netip.Prefix)) {
	errs := []error{n.read()}
	for _, dst := range n.wanted {
		if n.have[dst] {
			continue
		}
		r := nowhereRoute(dst)
		if err := n.rt.Handle().RouteAdd(&r); err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("add unreachable route %s: %w", dst, err))
			continue
		}
		if n.have != nil {
			n.have[dst] = true
		}
		if made != nil {
			made(dst)
		}
	}
	n.err = errors.Join(errs...)
	n.report.Publish(dataplane.StateOf(n.err), n.err, dataplane.ObjectStatus{Kind: kindNowhere, Wanted: len(n.wanted), Have: n.count()})
}

const kindNowhere = "unreachable route"

func (n *Nowhere) count() (have int) {
	for _, dst := range n.wanted {
		if n.have[dst] {
			have++
		}
	}
	return have
}

func (n *Nowhere) read() error {
	if n.have != nil {
		return nil
	}
	dsts, err := listNowhere(n.rt)
	if err != nil {
		return err
	}
	n.have = map[netip.Prefix]bool{}
	for _, dst := range dsts {
		n.have[dst] = true
	}
	return nil
}

// Prune implements dataplane.Part. Routes into other networks are another overlay's; one around these is of a config before.
func (n *Nowhere) Prune(_ context.Context, w dataplane.Wanted) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return errClosed
	}
	var errs []error
	for dst := range n.have {
		if !slices.Contains(n.wanted, dst) && slices.ContainsFunc(w.Networks, dst.Overlaps) {
			if err := n.rt.DeleteRoute(nowhereRoute(dst)); err != nil {
				errs = append(errs, err)
				continue
			}
			delete(n.have, dst)
		}
	}
	return errors.Join(errs...)
}

// Run makes again what others remove, until ctx ends.
func (n *Nowhere) Run(ctx context.Context, _ func()) error {
	defer n.Close()
	return n.watch.Run(ctx, watch.Loop{
		Concerns: func(h unix.NlMsghdr, body []byte) bool {
			return h.Type == unix.RTM_DELROUTE && len(body) >= unix.SizeofRtMsg && body[5] == rtnl.RouteProtocol && body[7] == unix.RTN_UNREACHABLE
		},
		Look:    func(context.Context) error { n.look(); return nil },
		Spread:  pace.Spread{Gather: gather, Between: between, Rest: maxPause},
		Resync:  n.resync,
		Pending: n.pending,
	})
}

func (n *Nowhere) pending() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err != nil
}

func (n *Nowhere) look() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.wanted == nil {
		return
	}
	before := n.have
	n.have = nil
	var changes []dataplane.Change
	n.add(func(dst netip.Prefix) {
		if before[dst] {
			changes = append(changes, dataplane.Change{Op: dataplane.OpAdd, Kind: kindNowhere, Key: dst.String(), Is: "unreachable"})
		}
	})
	n.report.Repaired(changes...)
}

// Status implements dataplane.Part.
func (n *Nowhere) Status() dataplane.PartStatus { return n.report.Status() }

// Close releases the sockets; the routes stay.
func (n *Nowhere) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		n.closed = true
		n.watch.Close()
		n.rt.Close()
	}
	return nil
}

// Withdraw removes the routes of Nowhere that lead into these networks, or are around them: those are of a config before.
func Withdraw(networks []netip.Prefix) error {
	rt, err := rtnl.Open()
	if err != nil {
		return fmt.Errorf("withdraw unreachable routes: %w", err)
	}
	defer rt.Close()
	dsts, err := listNowhere(rt)
	errs := []error{err}
	for _, dst := range dsts {
		if slices.ContainsFunc(networks, dst.Overlaps) {
			errs = append(errs, rt.DeleteRoute(nowhereRoute(dst)))
		}
	}
	return errors.Join(errs...)
}
