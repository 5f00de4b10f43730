package fit

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/underlay"
	"github.com/overlayd/overlayd/dataplane/watch"
)

// Needs reads what this host needs of its underlay. With an error it lacks what only the routes
// tell.
func Needs(ctx context.Context, i underlay.Interface, storeHosts []string) (control.Underlay, error) {
	n := needs{iface: i, hosts: storeHosts}
	n.lookUp(ctx)
	return n.read()
}

// needs reads what a host needs again and again. The addresses of names are remembered in between.
type needs struct {
	iface  underlay.Interface
	hosts  []string // of the store
	stores []netip.Addr
}

// lookUp finds the addresses of the store. If it finds nothing, the last ones stay.
func (n *needs) lookUp(ctx context.Context) {
	if found := addressesOf(ctx, n.hosts); len(found) > 0 {
		n.stores = found
	}
}

func (n *needs) read() (control.Underlay, error) {
	routes, err := underlay.ReadNeeds(n.iface, rtnl.RouteProtocol)
	return needsOf(n.iface, routes, n.stores, nameServers(resolvConf)), err
}

const (
	needsSettle  = 250 * time.Millisecond // a route is often replaced by deleting the old one first
	needsRecheck = time.Minute            // names and files change without a notification
)

// WatchNeeds calls changed whenever Needs would return something else than now, until ctx ends.
func WatchNeeds(ctx context.Context, i underlay.Interface, storeHosts []string, now control.Underlay, changed func(control.Underlay)) error {
	s, err := watch.Open(watch.Groups{Protocol: unix.NETLINK_ROUTE, Must: []int{unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_LINK}})
	if err != nil {
		return fmt.Errorf("watch routes: %w", err)
	}
	defer s.Close()
	n, stale := needs{iface: i, hosts: storeHosts}, atomic.Bool{}
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
	return s.Run(ctx, watch.Loop{Concerns: concernsNeeds, Forget: func() { stale.Store(true) }, Look: look, Spread: pace.Spread{Gather: needsSettle}, Resync: needsRecheck})
}

// concernsNeeds ignores the overlay's own routes: there may be thousands.
func concernsNeeds(h unix.NlMsghdr, body []byte) bool {
	const protocol = 5 // offset of rtmsg.rtm_protocol
	isRoute := h.Type == unix.RTM_NEWROUTE || h.Type == unix.RTM_DELROUTE
	return !isRoute || len(body) <= protocol || body[protocol] != rtnl.RouteProtocol
}

// needsOf puts together what a host needs. A single address is named by its most important use.
func needsOf(i underlay.Interface, routes underlay.Needs, stores, resolvers []netip.Addr) (u control.Underlay) {
	add := func(what string, yields bool, addrs ...netip.Addr) {
		for _, a := range addrs {
			known := func(n control.Need) bool { return n.Addr == a }
			if a.IsValid() && !a.IsLoopback() && !slices.ContainsFunc(u.Needs, known) {
				u.Needs = append(u.Needs, control.Need{Addr: a, What: what, Yields: yields})
			}
		}
	}
	add("the underlay address of this host", false, i.IPv4.Local, i.IPv6.Local)
	add("the public IP of this host", false, i.IPv4.Public, i.IPv6.Public)
	for i := range u.Needs {
		u.Needs[i].Own = true
	}
	add("the default gateway of this host", false, routes.Gateways...)
	add("an address of the store", false, stores...)
	add("a name server of this host", true, resolvers...)
	add("the metadata service of clouds", true, netip.AddrFrom4([4]byte{169, 254, 169, 254}))
	u.OnLink = routes.OnLink
	return u
}

// lookupPatience bounds how long a session waits for the addresses of the store's hosts.
const lookupPatience = 2 * time.Second

// addressesOf returns the addresses of hosts that are given by name or address. One that cannot be
// found now is passed over: its store is asked again and again anyway.
func addressesOf(ctx context.Context, hosts []string) (addrs []netip.Addr) {
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
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
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
