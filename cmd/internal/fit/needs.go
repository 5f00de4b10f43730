package fit

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/hostfile"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/underlay"
	"github.com/overlayd/overlayd/dataplane/watch"
)

// Store is where a host reaches its store.
type Store struct {
	Hosts   []string            // names or addresses
	Remotes func() []netip.Addr // at the other end of its connections, whatever a name leads to now; nil: not known
	Answers func() bool         // whether it does; nil: not known
}

// Needs reads what this host needs of its underlay. With an error it lacks what only the routes
// tell.
func Needs(ctx context.Context, i underlay.Interface, store Store) (control.Underlay, error) {
	n := needs{iface: i, store: store}
	n.lookUp(ctx)
	return n.read()
}

// needs reads what a host needs again and again. The addresses of names are remembered in between.
type needs struct {
	iface underlay.Interface
	store Store
	named []netip.Addr // what the store's names lead to
}

// lookUp finds the addresses of the store. If it finds nothing, the last ones stay.
func (n *needs) lookUp(ctx context.Context) {
	if found := AddressesOf(ctx, n.store.Hosts); len(found) > 0 {
		n.named = found
	}
}

func (n *needs) read() (control.Underlay, error) {
	stores := slices.Clone(n.named)
	if n.store.Remotes != nil {
		stores = append(stores, n.store.Remotes()...)
	}
	resolvers := nameServers(resolvConf)
	routes, err := underlay.ReadNeeds(n.iface, rtnl.RouteProtocol, slices.Concat(stores, resolvers)...)
	return needsOf(n.iface, routes, stores, resolvers), err
}

const (
	needsSettle  = 250 * time.Millisecond // a route is often replaced by deleting the old one first
	needsBetween = time.Second            // the least time between two looks: the devices of many networks come one after the other, and each network looks
	needsRecheck = time.Minute            // names and files change without a notification
	lostRecheck  = 2 * time.Second        // while the store does not answer: it may have moved to where an own route leads
)

// WatchNeeds calls changed whenever Needs would return something else than now, until ctx ends.
func WatchNeeds(ctx context.Context, i underlay.Interface, store Store, now control.Underlay, changed func(control.Underlay)) error {
	s, err := watch.Open(watch.Groups{Protocol: unix.NETLINK_ROUTE, Must: []int{unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_LINK}})
	if err != nil {
		return fmt.Errorf("watch routes: %w", err)
	}
	defer s.Close()
	n, stale := needs{iface: i, store: store}, atomic.Bool{}
	stale.Store(true)
	look := func(ctx context.Context) error {
		if stale.Swap(false) {
			n.lookUp(ctx)
		}
		got, err := n.read()
		if err != nil || got.Equal(now) {
			return nil // with an error the last one stays
		}
		now = got
		changed(got)
		return nil
	}
	s.Wake() // something may have changed before there was a subscription
	defer lookWhileLost(ctx, store, func() {
		stale.Store(true)
		s.Wake()
	})()
	return s.Run(ctx, watch.Loop{Concerns: concernsNeeds, Forget: func() { stale.Store(true) }, Look: look, Spread: pace.Spread{Gather: needsSettle, Between: needsBetween}, Resync: needsRecheck})
}

// lookWhileLost calls look again and again while the store does not answer, until stop is called.
func lookWhileLost(ctx context.Context, store Store, look func()) (stop func()) {
	if store.Answers == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var group errgroup.Group
	group.Go(func() error {
		for pace.Sleep(ctx, lostRecheck, nil) {
			if !store.Answers() {
				look()
			}
		}
		return nil
	})
	return func() {
		cancel()
		group.Wait() // it returns nil
	}
}

// concernsNeeds ignores the overlay's own routes: there may be thousands.
func concernsNeeds(h unix.NlMsghdr, body []byte) bool {
	const protocol = 5 // offset of rtmsg.rtm_protocol
	isRoute := h.Type == unix.RTM_NEWROUTE || h.Type == unix.RTM_DELROUTE
	return !isRoute || len(body) <= protocol || body[protocol] != rtnl.RouteProtocol
}

// needsOf puts together what a host needs. A single address is named by its most important use. The ways of routes are those to the
// stores, and then to the resolvers. Of these an address of this host itself is not listed: no route leads it away.
func needsOf(i underlay.Interface, routes underlay.Needs, stores, resolvers []netip.Addr) (u control.Underlay) {
	add := func(what string, route netip.Prefix, addrs ...netip.Addr) {
		for _, a := range addrs {
			known := func(n control.Need) bool { return n.Addr == a }
			if a.IsValid() && !a.IsLoopback() && !slices.ContainsFunc(u.Needs, known) {
				u.Needs = append(u.Needs, control.Need{Addr: a, What: what, Route: route})
			}
		}
	}
	reached := func(what string, addrs []netip.Addr, ways []underlay.Way) {
		for n, a := range addrs {
			var way underlay.Way
			if n < len(ways) {
				way = ways[n]
			}
			if !slices.Contains(routes.Locals, a) {
				add(what, way.Route, a)
				add("the next hop to "+what, netip.Prefix{}, way.Gateways...)
			}
		}
	}
	add("the underlay address of this host", netip.Prefix{}, i.IPv4.Local, i.IPv6.Local)
	add("the public IP of this host", netip.Prefix{}, i.IPv4.Public, i.IPv6.Public)
	for i := range u.Needs {
		u.Needs[i].Own = true
	}
	add("the default gateway of this host", netip.Prefix{}, routes.Gateways...)
	reached("an address of the store", stores, routes.Ways)
	reached("a name server of this host", resolvers, routes.Ways[min(len(stores), len(routes.Ways)):])
	add("the metadata service of clouds", netip.Prefix{}, metadata)
	u.Needs[len(u.Needs)-1].Yields = u.Needs[len(u.Needs)-1].Addr == metadata
	u.OnLink, u.Locals = routes.OnLink, routes.Locals
	for _, l := range routes.Links {
		u.Links = append(u.Links, control.Link(l))
	}
	return u
}

var metadata = netip.AddrFrom4([4]byte{169, 254, 169, 254})

// lookupPatience bounds how long a session waits for the addresses of the store's hosts.
const lookupPatience = 2 * time.Second

// AddressesOf returns the addresses of hosts that are given by name or address. One that cannot be
// found now is passed over: its store is asked again and again anyway.
func AddressesOf(ctx context.Context, hosts []string) (addrs []netip.Addr) {
	ctx, cancel := context.WithTimeout(ctx, lookupPatience)
	defer cancel()
	for _, host := range hosts {
		if a, err := netip.ParseAddr(host); err == nil {
			addrs = append(addrs, a.Unmap())
			continue
		}
		found, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		for _, a := range found {
			addrs = append(addrs, a.Unmap())
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare) // a name server gives them in any order
	return addrs
}

// resolvConf is the file of resolv.conf(5).
const resolvConf = "/etc/resolv.conf"

// nameServers returns those that a file of resolv.conf(5) names, none if it cannot be read.
func nameServers(file string) (addrs []netip.Addr) {
	f, err := hostfile.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	for s := bufio.NewScanner(io.LimitReader(f, hostfile.MaxLen)); s.Scan(); {
		words := strings.Fields(s.Text())
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(words[1]); err == nil {
			addrs = append(addrs, a.WithZone("").Unmap())
		}
	}
	return addrs
}
