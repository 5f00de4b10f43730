package hostroute

import (
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// hop is where a direct route goes.
type hop struct {
	via  netip.Addr // the peer's VTEP
	link int        // interface index of the link that both are on
}

// decision tells which peers have direct routes.
type decision struct {
	peers  []dataplane.Peer     // as wanted; Direct if all subnets have a direct route
	direct map[netip.Prefix]hop // by subnet
}

// decide finds the peers that are on-link. link returns the index of the interface on which
// an address is a neighbour of this host, or 0. Subnets in refused get no direct route. The
// store is not trusted: a route must never lead away traffic that does not belong to the
// overlay.
func decide(w dataplane.Wanted, link func(netip.Addr) int, refused map[netip.Prefix]bool) decision {
	d := decision{peers: make([]dataplane.Peer, 0, len(w.Peers)), direct: map[netip.Prefix]hop{}}
	seen := make(map[netip.Prefix]bool, len(w.Peers))
	for _, p := range w.Peers {
		var direct, rest []netip.Prefix
		index := 0
		if isNeighbourly(p.Addr, w) {
			index = link(p.Addr)
		}
		for _, s := range p.Subnets {
			if index > 0 && !seen[s] && !refused[s] && fits(s, p.Addr, w) {
				direct, d.direct[s] = append(direct, s), hop{p.Addr, index}
			} else {
				rest = append(rest, s)
			}
			seen[s] = true
		}
		d.peers = appendPart(appendPart(d.peers, p, direct, true), p, rest, false)
	}
	return d
}

// appendPart adds the peer with some of its subnets, if there are any.
func appendPart(peers []dataplane.Peer, p dataplane.Peer, subnets []netip.Prefix, direct bool) []dataplane.Peer {
	if len(subnets) == 0 {
		return peers
	}
	p.Subnets, p.Direct = subnets, direct
	return append(peers, p)
}

// isNeighbourly reports whether a can be the address of a neighbour. Inside the overlay networks
// it can if the underlay has it; the route to it then leads to no overlay device.
func isNeighbourly(a netip.Addr, w dataplane.Wanted) bool {
	holds := func(p netip.Prefix) bool { return p.Contains(a) }
	return a.IsValid() && a.IsGlobalUnicast() && !a.Is4In6() &&
		(!slices.ContainsFunc(w.Networks, holds) || slices.ContainsFunc(w.Underlay, holds) && !slices.ContainsFunc(w.Subnets, holds))
}

// fits reports whether a peer's subnet may have a direct route through the address.
func fits(s netip.Prefix, via netip.Addr, w dataplane.Wanted) bool {
	return s.IsValid() && s == s.Masked() && s.Addr().BitLen() == via.BitLen() && rtnl.Inside(s, w.Networks) &&
		!slices.ContainsFunc(w.Subnets, s.Overlaps)
}
