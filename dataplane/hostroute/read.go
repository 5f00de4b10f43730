package hostroute

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// read lists the routes inside the overlay networks, unless they are remembered. fresh
// reports whether it did.
func (r *Routes) read(w dataplane.Wanted) (fresh bool, err error) {
	if r.known {
		return false, nil
	}
	all, err := rtnl.Retry(func() ([]netlink.Route, error) { return r.rt.Handle().RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return false, fmt.Errorf("list routes: %w", err)
	}
	r.have, r.refused = classify(all, w)
	if r.cfg.idle() { // only removals are left to do, and never of a device's routes
		r.have = slices.DeleteFunc(r.have, func(c route) bool { return c.owner == device })
	}
	r.known, r.reasons = true, map[netip.Prefix]error{}
	return true, nil
}

// classify returns the routes of the main table inside the overlay networks that overlayd or
// flannel made. taken has the destinations of others' routes there.
func classify(all []netlink.Route, w dataplane.Wanted) (out []route, taken map[netip.Prefix]bool) {
	taken = map[netip.Prefix]bool{}
	peers := peersBySubnet(w)
	routers := map[netip.Addr]bool{}
	for _, r := range all {
		// A peer may also be the gateway of another overlay's direct routes.
		if gw, ok := gateway(r); ok && !rtnl.Inside(rtnl.Prefix(r.Dst), w.Networks) && !rtnl.IsHostRoute(r) {
			routers[gw] = true
		}
	}
	for _, r := range all {
		dst := rtnl.Prefix(r.Dst)
		if !rtnl.Inside(dst, w.Networks) {
			continue
		}
		gw, _ := gateway(r)
		c := route{dst: dst, hop: hop{gw, r.LinkIndex}}
		ofFlannel := r.Protocol == unix.RTPROT_BOOT && isDefaultMetric(r)
		switch {
		case r.Type == unix.RTN_BLACKHOLE && (r.Protocol == rtnl.RouteProtocol || ofFlannel && hasOwnLength(dst, w) && (peers == nil || slices.Contains(w.Subnets, dst))):
			c.blackhole, c.hop = true, hop{}
			if ofFlannel {
				c.owner = flannel
			}
			if r.Protocol == rtnl.RouteProtocol {
				c.metric = r.Priority
			}
		case !isDefaultMetric(r):
			continue
		case rtnl.IsHostRoute(r):
		case r.Type == unix.RTN_UNICAST && (r.Protocol == rtnl.RouteProtocol || ofFlannel && gw == dst.Addr() && isOnLink(r)):
			c.owner = device
		case r.Type == unix.RTN_UNICAST && ofFlannel && gw != dst.Addr() && !isOnLink(r) && hasOwnLength(dst, w) &&
			isNeighbourly(gw, w) && !routers[gw] && (peers == nil || peers[dst] == gw):
			c.owner = flannel
		default:
			taken[dst] = true
			continue
		}
		out = append(out, c)
	}
	return out, taken
}

// peersBySubnet returns the peers' addresses by their subnets if the networks hold addresses of the
// underlay, else nil: an administrator's routes may be there too then, and only what leads to a
// peer is known to be flannel's.
func peersBySubnet(w dataplane.Wanted) map[netip.Prefix]netip.Addr {
	if len(w.Underlay) == 0 {
		return nil
	}
	peers := make(map[netip.Prefix]netip.Addr, len(w.Peers))
	for _, p := range w.Peers {
		for _, s := range p.Subnets {
			peers[s] = p.Addr
		}
	}
	return peers
}

func isOnLink(r netlink.Route) bool { return r.Flags&unix.RTNH_F_ONLINK != 0 }

// hasOwnLength reports whether p is as long as the own subnet of its family. All subnets of
// flannel have one length.
func hasOwnLength(p netip.Prefix, w dataplane.Wanted) bool {
	for _, own := range w.Subnets {
		if own.Addr().BitLen() == p.Addr().BitLen() && own.Bits() == p.Bits() {
			return true
		}
	}
	return false
}

// gateway returns the address of a route's only gateway.
func gateway(r netlink.Route) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(r.Gw)
	return a.Unmap(), ok
}

// defaultMetric6 is what the kernel gives an IPv6 route without a metric (IP6_RT_PRIO_USER).
const defaultMetric6 = 1024

func isDefaultMetric(r netlink.Route) bool {
	return r.Priority == 0 || r.Priority == defaultMetric6 && r.Dst.IP.To4() == nil
}
