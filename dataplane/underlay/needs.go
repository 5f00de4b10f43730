package underlay

import (
	"fmt"
	"net"
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
	Links    []Link         // of other interfaces
	Locals   []netip.Addr   // addresses of the host, sorted, without those of a loopback or of one link alone
	Ways     []Way          // to the addresses that were asked for, in their order
}

// Link is a prefix that has the hosts of a link: those of one host or two have none.
type Link struct {
	Prefix netip.Prefix // masked
	Name   string       // of the interface
}

// Way is how the host reaches an address without the overlay. The zero Way: it does not.
type Way struct {
	Route    netip.Prefix // destination of the most specific route
	Gateways []netip.Addr // of that, none if it is on link
}

// ReadNeeds reads what the host with the interface i needs, in the network namespace of the calling
// thread, and how it reaches the addresses to. Routes of the protocol own, which are the overlay's, are left out.
func ReadNeeds(i Interface, own netlink.RouteProtocol, to ...netip.Addr) (n Needs, err error) {
	n.Ways = make([]Way, len(to))
	for _, family := range families {
		routes, err := dump(func() (kept []netlink.Route, err error) {
			filter := &netlink.Route{Table: unix.RT_TABLE_MAIN}
			err = netlink.RouteListFilteredIter(family, filter, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
				if r.Protocol != own && r.Type == unix.RTN_UNICAST && (r.LinkIndex == i.Index || isOfInterest(r, family, to)) {
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
			n.addWays(r, family, to)
		}
	}
	n.Locals, err = locals()
	return n, err
}

// isOfInterest reports whether a route of another interface than the underlay's is of interest.
func isOfInterest(r netlink.Route, family int, to []netip.Addr) bool {
	dst := destination(r)
	return dst.Bits() == 0 || isLink(r, dst) || slices.ContainsFunc(to, func(a netip.Addr) bool { return a.Is4() == (family == netlink.FAMILY_V4) && dst.Contains(a) })
}

// isLink reports whether a route is that of the kernel to the hosts of a link.
func isLink(r netlink.Route, dst netip.Prefix) bool {
	return r.Protocol == unix.RTPROT_KERNEL && dst.Addr().IsGlobalUnicast() && dst.Bits() < dst.Addr().BitLen()-1
}

// addWays takes a route as the way to those of the addresses to which no more specific one leads.
func (n *Needs) addWays(r netlink.Route, family int, to []netip.Addr) {
	dst := destination(r)
	for i, a := range to {
		if a.Is4() != (family == netlink.FAMILY_V4) || dst.Bits() > 0 && !dst.Contains(a) {
			continue
		}
		switch w := &n.Ways[i]; {
		case !w.Route.IsValid() || dst.Bits() > w.Route.Bits():
			*w = Way{dst, gateways(r)}
		case dst == w.Route:
			w.Gateways = append(w.Gateways, gateways(r)...)
		}
	}
}

// locals returns the addresses of the host that others can send to.
func locals() (all []netip.Addr, err error) {
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && ip.Unmap().IsGlobalUnicast() {
			all = append(all, ip.Unmap())
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all), nil
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
	switch {
	case len(hops) > 0:
	case r.LinkIndex != index:
		if isLink(r, dst) {
			l, _ := net.InterfaceByIndex(r.LinkIndex) // it may have gone since
			link := Link{Prefix: dst}
			if l != nil {
				link.Name = l.Name
			}
			n.Links = append(n.Links, link)
		}
	case dst.Addr().IsGlobalUnicast() && !slices.Contains(n.OnLink, dst):
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
