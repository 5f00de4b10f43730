package node

import (
	"bufio"
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// readNeeds reads what this host needs of its underlay. With an error it lacks what only the routes
// tell.
func readNeeds(ctx context.Context, i underlay.Interface, storeHosts []string) (control.Underlay, error) {
	routes, err := underlay.ReadNeeds(i, rtnl.RouteProtocol)
	return needsOf(i, routes, addressesOf(ctx, storeHosts), nameServers(resolvConf)), err
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
