package underlay

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Needs is what a host reaches by its main tables without the overlay: no route of an overlay may
// lead it away.
type Needs struct {
	Gateways []netip.Addr   // of the default routes
	OnLink   []netip.Prefix // what the interface reaches without a gateway; masked
}

// ReadNeeds reads what the host with the interface i needs, in the network namespace of the calling
// thread. Routes of the protocol own, which are the overlay's, are left out.
func ReadNeeds(i Interface, own netlink.RouteProtocol) (n Needs, err error) {
	for _, family := range families {
		routes, err := dump(func() (kept []netlink.Route, err error) {
			filter := &netlink.Route{Table: unix.RT_TABLE_MAIN}
			err = netlink.RouteListFilteredIter(family, filter, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
				if r.Protocol != own && r.Type == unix.RTN_UNICAST && (r.LinkIndex == i.Index || destination(r).Bits() == 0) {
					kept = append(kept, r)
				}
				return true
			})
			return kept, err
		})
		if err != nil {
			return Needs{}, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			n.add(r, i.Index)
		}
	}
	return n, nil
}

// add takes what a route says of the underlay whose interface has that index.
func (n *Needs) add(r netlink.Route, index int) {
	dst, hops := destination(r), gateways(r)
	if dst.Bits() == 0 {
		for _, gw := range hops {
			if gw.IsGlobalUnicast() && !slices.Contains(n.Gateways, gw) {
				n.Gateways = append(n.Gateways, gw)
			}
		}
		return
	}
	if len(hops) == 0 && r.LinkIndex == index && dst.Addr().IsGlobalUnicast() && !slices.Contains(n.OnLink, dst) {
		n.OnLink = append(n.OnLink, dst)
	}
}

// destination returns where a route leads; without bits, it is a default route.
func destination(r netlink.Route) netip.Prefix {
	if r.Dst == nil {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	a, _ := netip.AddrFromSlice(r.Dst.IP)
	bits, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), bits).Masked()
}

// gateways returns the gateways of a route, several if it has several next hops.
func gateways(r netlink.Route) (out []netip.Addr) {
	add := func(gw []byte) {
		if a, ok := netip.AddrFromSlice(gw); ok {
			out = append(out, a.Unmap())
		}
	}
	add(r.Gw)
	for _, hop := range r.MultiPath {
		add(hop.Gw)
	}
	return out
}
