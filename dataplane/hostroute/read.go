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
	all, err := rtnl.Retry(func() (kept []netlink.Route, err error) {
		err = r.rt.Handle().RouteListFilteredIter(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE, func(route netlink.Route) bool {
			// If only removals are left to do, they are never of a device's routes, of which there is one for each peer.
			if !r.cfg.idle() || !isDevices(route) || !rtnl.Inside(rtnl.Prefix(route.Dst), w.Networks) {
				kept = append(kept, route)
			}
			return true
		})
		return kept, err
	})
	if err != nil {
		return false, fmt.Errorf("list routes: %w", err)
	}
	r.have, r.refused = classify(all, w)
	r.taken = linksOf(all, r.refused)
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
		// A peer may also be the gateway of another overlay's direct routes, ours or flannel's.
		if gw, ok := gateway(r); ok && !rtnl.Inside(rtnl.Prefix(r.Dst), w.Networks) && !rtnl.IsHostRoute(r) && !isFlannelShaped(r, w) {
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
		metric := rtnl.MetricOf(dst, r.Priority)
		ofFlannel := r.Protocol == unix.RTPROT_BOOT && metric == 0
		switch {
		case r.Type == unix.RTN_BLACKHOLE && r.Protocol == rtnl.RouteProtocol:
			c.blackhole, c.hop, c.metric = true, hop{}, r.Priority
		case r.Type == unix.RTN_BLACKHOLE && ofFlannel && hasOwnLength(dst, w) && (peers == nil || slices.Contains(w.Subnets, dst)):
			c.blackhole, c.hop, c.owner = true, hop{}, flannel
		case metric != 0:
			continue
		case rtnl.IsHostRoute(r):
		case isDevices(r):
			c.owner = device
		case isFlannelShaped(r, w) && isNeighbourly(gw, w) && !routers[gw] && (peers == nil || peers[dst] == gw):
			c.owner = flannel
		default:
			taken[dst] = true
			continue
		}
		out = append(out, c)
	}
	return out, taken
}

// linksOf returns the links of the routes to these destinations.
func linksOf(all []netlink.Route, dsts map[netip.Prefix]bool) map[netip.Prefix][]int {
	links := map[netip.Prefix][]int{}
	for _, r := range all {
		dst := rtnl.Prefix(r.Dst)
		if !dsts[dst] {
			continue
		}
		links[dst] = append(links[dst], r.LinkIndex)
		for _, hop := range r.MultiPath {
			links[dst] = append(links[dst], hop.LinkIndex)
		}
	}
	return links
}

// isDevices reports whether r is a route of overlayd, or of flannel's device.
func isDevices(r netlink.Route) bool {
	dst := rtnl.Prefix(r.Dst)
	if r.Type != unix.RTN_UNICAST || rtnl.MetricOf(dst, r.Priority) != 0 || rtnl.IsHostRoute(r) {
		return false
	}
	gw, _ := gateway(r)
	return r.Protocol == rtnl.RouteProtocol || r.Protocol == unix.RTPROT_BOOT && gw == dst.Addr() && isOnLink(r)
}

// isFlannelShaped reports whether r has the shape of a direct route of flannel: through a gateway, without a mark or
// metric, to a prefix of the length of the own subnet.
func isFlannelShaped(r netlink.Route, w dataplane.Wanted) bool {
	dst := rtnl.Prefix(r.Dst)
	gw, ok := gateway(r)
	return ok && r.Type == unix.RTN_UNICAST && r.Protocol == unix.RTPROT_BOOT && rtnl.MetricOf(dst, r.Priority) == 0 &&
		gw != dst.Addr() && !isOnLink(r) && hasOwnLength(dst, w)
}

// peersBySubnet returns the peers' addresses by their subnets, or nil if the networks hold no address of
// the underlay. If they do, routes of the administrator may lie in them too, and only a route that leads to
// a peer is known to be flannel's.
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
