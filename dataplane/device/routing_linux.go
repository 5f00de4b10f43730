package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/watch"
)

// routing decides which routes lead to the device. One for each whole network is the rule: it never
// changes, and no packet for an address without a lease leaves the host. It does not fit if the
// network holds what belongs to others: addresses of the underlay, or a route of somebody else to the same
// destination. Then each subnet of a peer has a route of its own, as in the kernel dataplane. A more specific
// route of somebody else stays, and the peers whose packets it leads away are reported (taken_linux.go).
type routing struct {
	log     *slog.Logger
	notices *watch.Subscription // of changes of links, addresses and routes
	recheck time.Duration
	index   uint32                  // of the device; set before run
	reasons map[netip.Prefix]string // why a network has no route of its own; nil before the first decision
	said    map[netip.Prefix]bool   // the log has that a network has none
	lines   pace.Notices            // of that
	others  atomic.Pointer[others]  // to networks; nil before the first decision
	dirty   atomic.Bool             // others may be another now
}

// others are the routes of others into the networks, without those into the own subnets, where the pods of this
// host are. They are never changed.
type others struct {
	networks, own []netip.Prefix
	routes        []rtnl.OtherRoute
}

func (o *others) holds(dst netip.Prefix) bool {
	return rtnl.Inside(dst, o.networks) && !rtnl.Inside(dst, o.own)
}

// read returns the routes of others that concern w, with an error none.
func read(conn *rtnl.Conn, w dataplane.Wanted) (*others, error) {
	o := &others{networks: w.Networks, own: w.Subnets}
	var err error
	o.routes, err = conn.RoutesOfOthers(o.holds)
	return o, err
}

func openRouting(log *slog.Logger, deaf bool) (*routing, error) {
	s, err := watch.Open(watch.Groups{Protocol: unix.NETLINK_ROUTE, Must: []int{unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE}, Deaf: deaf})
	if err != nil {
		return nil, err
	}
	r := &routing{log: log, notices: s, recheck: recheck, said: map[netip.Prefix]bool{}}
	if deaf {
		r.recheck = watch.DeafResync
	}
	return r, nil
}

// wanted returns the routes for w, whose peers are all in use, and whether the decision is another
// than the last one. The error is a *dataplane.PeerError for each peer that they do not reach, as long as the
// routes of others are known. Those on the links ours take no packets away.
func (r *routing) wanted(conn *rtnl.Conn, w dataplane.Wanted, ours []int) (want rtnl.Routes, changed bool, err error) {
	o := r.others.Load()
	if r.dirty.Swap(false) || o == nil || !slices.Equal(o.networks, w.Networks) || !slices.Equal(o.own, w.Subnets) {
		o, err = read(conn, w)
		o = r.learn(o, err)
	}
	reasons := reasonsAgainst(w, o.routes)
	changed = r.say(w.Networks, reasons)
	want.Networks = w.Networks
	for _, n := range w.Networks {
		if reasons[n] == "" {
			want.Whole = append(want.Whole, n)
			continue
		}
		want.Subnets = append(want.Subnets, subnetsIn(n, w.Peers)...)
	}
	return want, changed, errors.Join(err, taken(w.Peers, o.routes, want, ours))
}

// learn stores what was read, and returns it. If reading failed, learn returns what was known before, if anything was: else a route for a
// whole network could take packets of somebody else.
func (r *routing) learn(now *others, err error) *others {
	if err != nil {
		r.dirty.Store(true)
		if before := r.others.Load(); before != nil {
			return before
		}
	}
	r.others.Store(now)
	return now
}

// ReasonsForSubnetRoutes returns why this host would have a route for each subnet of a network of w
// instead of one for all of it; networks with one route are left out.
func ReasonsForSubnetRoutes(w dataplane.Wanted) (map[netip.Prefix]string, error) {
	conn, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	o, err := read(conn, w)
	return reasonsAgainst(w, o.routes), err
}

// reasonsAgainst returns why networks of w can have no route of their own.
func reasonsAgainst(w dataplane.Wanted, others []rtnl.OtherRoute) map[netip.Prefix]string {
	reasons := map[netip.Prefix]string{}
	for _, n := range w.Networks {
		of := slices.IndexFunc(w.Underlay, n.Overlaps)
		route := slices.IndexFunc(others, func(o rtnl.OtherRoute) bool { return o.Dst == n })
		switch {
		case route >= 0:
			reasons[n] = "somebody else has a route to it: " + others[route].Text
		case of >= 0 && w.Underlay[of].IsSingleIP():
			reasons[n] = fmt.Sprintf("it holds %s of the underlay", w.Underlay[of].Addr())
		case of >= 0:
			reasons[n] = fmt.Sprintf("it holds %s of the underlay", w.Underlay[of])
		}
	}
	return reasons
}

// subnetsIn returns the subnets of peers inside a network to which no direct route leads.
func subnetsIn(network netip.Prefix, peers []dataplane.Peer) (subnets []netip.Prefix) {
	for _, p := range peers {
		for _, s := range p.Subnets {
			if !p.Direct && network.Overlaps(s) {
				subnets = append(subnets, s)
			}
		}
	}
	return subnets
}

// say logs a decision, and reports whether it is another than the last one. As long
// as all is as usual it logs nothing.
func (r *routing) say(networks []netip.Prefix, reasons map[netip.Prefix]string) (changed bool) {
	if maps.Equal(r.reasons, reasons) {
		return false
	}
	for _, n := range networks {
		switch why := reasons[n]; {
		case why == r.reasons[n]:
		case why == "":
			if r.said[n] {
				r.log.Info("overlay routes: one for the whole network again", "network", n)
			}
			delete(r.said, n)
		case r.reasons[n] == "":
			if due, _ := r.lines.Due(time.Now(), pace.Notice{Key: n.String(), Text: why}); len(due) == 0 {
				continue // somebody's route comes and goes
			}
			r.said[n] = true
			r.log.Info("overlay routes: one for each subnet instead of one for the whole network", "network", n, "why", why)
		}
	}
	r.reasons = reasons
	return true
}

// concerns reports whether a notification may be about the device, its addresses and routes, or somebody
// else's route into one of the networks. The kernel does not tell of IPv4 routes that go with their interface.
func (r *routing) concerns(h unix.NlMsghdr, body []byte) bool {
	return r.concernsOthers(h, body) || r.concernsDevice(h, body)
}

func (r *routing) concernsDevice(h unix.NlMsghdr, body []byte) bool {
	switch h.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return len(body) >= unix.SizeofIfInfomsg && uint32(nl.DeserializeIfInfomsg(body).Index) == r.index
	case unix.RTM_DELADDR:
		return len(body) >= unix.SizeofIfAddrmsg && nl.DeserializeIfAddrmsg(body).Index == r.index
	case unix.RTM_DELROUTE:
		route, ok := rtnl.ParseRoute(body)
		return ok && route.Table == unix.RT_TABLE_MAIN && route.Protocol == rtnl.RouteProtocol
	}
	return false
}

func (r *routing) concernsOthers(h unix.NlMsghdr, body []byte) bool {
	o := r.others.Load()
	concerns := false
	switch {
	case o == nil:
	case h.Type == unix.RTM_NEWLINK || h.Type == unix.RTM_DELLINK:
		concerns = len(body) >= unix.SizeofIfInfomsg && slices.ContainsFunc(o.routes, func(r rtnl.OtherRoute) bool {
			return r.Link == int(nl.DeserializeIfInfomsg(body).Index)
		})
	case h.Type == unix.RTM_NEWROUTE || h.Type == unix.RTM_DELROUTE:
		route, ok := rtnl.ParseRoute(body)
		concerns = ok && route.Table == unix.RT_TABLE_MAIN && route.Protocol != rtnl.RouteProtocol && o.holds(rtnl.Prefix(route.Dst))
	}
	if concerns {
		r.dirty.Store(true)
	}
	return concerns
}

// recheck is how often the routes of others are read if nothing was noticed.
const recheck = time.Minute

// run calls changed when somebody else has changed the device, its addresses or its routes, or a route into one of
// the networks, until ctx ends or changed returns an error. It does so soon, because packets follow the routes of others until then.
func (r *routing) run(ctx context.Context, changed func() error) error {
	return r.notices.Run(ctx, watch.Loop{
		Concerns: r.concerns,
		Forget:   func() { r.dirty.Store(true) },
		Look:     func(context.Context) error { return changed() },
		Spread:   pace.Spread{Gather: 10 * time.Millisecond, Between: 50 * time.Millisecond, Rest: time.Second},
		Resync:   r.recheck,
	})
}

// byPeer turns the errors of routes to the subnets of peers into errors of these peers.
func byPeer(peers []dataplane.Peer, err error) error {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		var all []error
		for _, part := range e.Unwrap() {
			all = append(all, byPeer(peers, part))
		}
		return errors.Join(all...)
	case *rtnl.RouteError:
		for _, p := range peers {
			if slices.Contains(p.Subnets, e.Dst) {
				return &dataplane.PeerError{Peer: p, Err: err}
			}
		}
	}
	return err
}
