package rtnl

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

// ErrRouteTaken means that somebody else has a route to that destination, of another protocol.
// It is never replaced. It wraps [dataplane.ErrRouteTaken].
var ErrRouteTaken error = takenError{}

type takenError struct{}

// Error implements error.
func (takenError) Error() string { return "somebody else has a route to it" }

// Unwrap lets errors.Is see what a peer's status says.
func (takenError) Unwrap() error { return dataplane.ErrRouteTaken }

// Routes are the link-scope routes that an overlay device is to have.
type Routes struct {
	Networks []netip.Prefix // the overlay networks
	// Whole are those of them to which one route leads. It gives way to every other route of the same
	// destination, so that nobody is refused one because of it.
	Whole []netip.Prefix
	// Subnets have a route each. One takes the place of a direct route (IsHostRoute) of the same
	// destination, at once.
	Subnets []netip.Prefix
	// Over are indices of links that are to go: a route there, whoever's, gives way to that of a subnet, at once.
	Over []int
}

// WholeMetric is the metric of a route to a whole network: more than any route of others has.
const WholeMetric = 1 << 20

// RouteError says why one route could not be made.
type RouteError struct {
	Dst netip.Prefix
	Err error
}

// Error implements error.
func (e *RouteError) Error() string { return fmt.Sprintf("add route %s: %v", e.Dst, e.Err) }

// Unwrap lets errors.Is and errors.As see the cause.
func (e *RouteError) Unwrap() error { return e.Err }

// SetRoutes makes the overlayd routes on the link (those with [RouteProtocol] in
// the main table) be exactly those of w. What an overlayd with another VNI or dataplane left on
// another link is removed if it leads into one of the networks: two live overlays of one host have
// no address in common. Host routes ([IsHostRoute]) are left alone, except those that the route of a
// subnet replaces, and unreachable ones inside a network that has one route. Nothing is removed before its successor is there. A destination that somebody else
// already routes is a [*RouteError] that wraps [ErrRouteTaken], and does not keep the others from being set.
func (c *Conn) SetRoutes(index int, w Routes) error {
	all, err := c.ourRoutes()
	if err != nil {
		return err
	}
	p := planRoutes(all, index, w)
	errs := []error{c.replaceOn(w.Over, &p)}
	errs = append(errs, c.deleteRoutes(p.conflicting)...)
	errs = append(errs, c.addRoutes(p.missing, p.replaces)...)
	return errors.Join(append(errs, c.deleteRoutes(p.stale)...)...)
}

// replaceOn has missing routes replace those of the same destination on these links.
func (c *Conn) replaceOn(links []int, p *routePlan) error {
	for _, index := range links {
		routes, err := c.routesOn(index)
		if err != nil {
			return err
		}
		there := map[netip.Prefix]bool{}
		for _, r := range routes {
			dst := Prefix(r.Dst)
			there[dst] = there[dst] || MetricOf(dst, r.Priority) == 0
		}
		for _, m := range p.missing {
			if dst := Prefix(m.Dst); m.Priority == 0 && there[dst] {
				p.replaces[dst] = true
			}
		}
	}
	return nil
}

// routesOn lists the routes of the main table on a link.
func (c *Conn) routesOn(index int) ([]netlink.Route, error) {
	filter := &netlink.Route{LinkIndex: index, Table: unix.RT_TABLE_MAIN}
	routes, err := Retry(func() ([]netlink.Route, error) {
		return c.h.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes of link %d: %w", index, err)
	}
	return routes, nil
}

// routePlan is what SetRoutes does: conflicting routes go before the missing ones can be added,
// stale ones after that. Some missing ones replace another route of overlayd, at once.
type routePlan struct {
	missing, conflicting, stale []netlink.Route
	replaces                    map[netip.Prefix]bool
}

func planRoutes(all []netlink.Route, index int, w Routes) (p routePlan) {
	p.replaces = map[netip.Prefix]bool{}
	metrics := make(map[netip.Prefix]int, len(w.Whole)+len(w.Subnets))
	for _, d := range w.Whole {
		metrics[d] = WholeMetric
	}
	for _, d := range w.Subnets {
		metrics[d] = 0
	}
	done := make(map[netip.Prefix]bool, len(metrics))
	var hiding []netlink.Route // would come before the route to the network around them as soon as that to a smaller one has gone
	for _, r := range all {
		dst := Prefix(r.Dst)
		metric, wanted := metrics[dst]
		same := wanted && MetricOf(dst, r.Priority) == metric
		switch {
		case r.Type == unix.RTN_UNREACHABLE && r.Priority == NowhereMetric && !wanted && Inside(dst, w.Whole):
			hiding = append(hiding, r)
		case IsHostRoute(r):
			if same && r.Type == unix.RTN_UNICAST {
				p.replaces[dst] = true
			}
		case same && !done[dst] && isLinkRoute(r, index):
			done[dst] = true
		case same:
			p.conflicting = append(p.conflicting, r)
		case wanted || r.LinkIndex == index || Inside(dst, w.Networks):
			p.stale = append(p.stale, r)
		}
	}
	p.stale = append(hiding, p.stale...)
	p.conflicting = slices.DeleteFunc(p.conflicting, func(r netlink.Route) bool {
		dst := Prefix(r.Dst)
		first := !done[dst] && !p.replaces[dst]
		p.replaces[dst] = p.replaces[dst] || first
		return first
	})
	for _, d := range slices.Concat(w.Whole, w.Subnets) {
		if !done[d] {
			p.missing = append(p.missing, netlink.Route{LinkIndex: index, Dst: IPNet(d), Scope: netlink.SCOPE_LINK, Protocol: RouteProtocol, Priority: metrics[d]})
		}
	}
	return p
}

// MetricOf returns the metric of a route to dst that has this priority, 0 for its family's default.
func MetricOf(dst netip.Prefix, priority int) int {
	const defaultMetric6 = 1024 // what the kernel gives an IPv6 route without a metric (IP6_RT_PRIO_USER)
	if priority == defaultMetric6 && dst.Addr().Is6() {
		return 0
	}
	return priority
}

// IsHostRoute reports whether r is a host route: one of [RouteProtocol] that does not lead to an
// overlay device. These belong to dataplane/hostroute and not to a dataplane: direct routes,
// whose gateway is an underlay address and needs no onlink flag (routes of the dataplanes
// have no gateway, or the subnet's base address, on link), blackholes, and what is unreachable.
func IsHostRoute(r netlink.Route) bool {
	if r.Protocol != RouteProtocol || r.Dst == nil {
		return false
	}
	return r.Type == unix.RTN_BLACKHOLE || r.Type == unix.RTN_UNREACHABLE && r.Priority == NowhereMetric || r.Type == unix.RTN_UNICAST && r.Gw != nil &&
		r.Flags&unix.RTNH_F_ONLINK == 0 && !r.Gw.Equal(r.Dst.IP)
}

// Inside reports whether p lies within one of the networks.
func Inside(p netip.Prefix, networks []netip.Prefix) bool {
	return p.IsValid() && slices.ContainsFunc(networks, func(n netip.Prefix) bool {
		return n.Bits() <= p.Bits() && n.Contains(p.Addr())
	})
}

func isLinkRoute(r netlink.Route, index int) bool {
	return r.LinkIndex == index && r.Gw == nil && (r.Scope == netlink.SCOPE_LINK || Prefix(r.Dst).Addr().Is6())
}

// NowhereMetric is that of the routes by which dataplane/hostroute makes overlay addresses unreachable: they give way to every
// other one. It is the largest but one that a route can have.
const NowhereMetric = 1<<32 - 2

// heldMetric is that of the routes of HoldRoutes: every other route beats them.
const heldMetric = 1<<20 + 1

// HoldRoutes puts a blackhole beneath each route of ours and of flannel's on a link that is about to go, so
// that nothing leaves by another way until other routes stand there. ReleaseRoutes, or dataplane/hostroute,
// removes them once the overlay is synced.
func (c *Conn) HoldRoutes(index int) error {
	routes, err := c.routesOn(index)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range routes {
		if r.Dst == nil || r.Protocol != RouteProtocol && r.Protocol != unix.RTPROT_BOOT {
			continue
		}
		hold := netlink.Route{Dst: r.Dst, Type: unix.RTN_BLACKHOLE, Protocol: RouteProtocol, Priority: heldMetric}
		if err := c.h.RouteAdd(&hold); err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("hold route %s: %w", r.Dst, err))
		}
	}
	return errors.Join(errs...)
}

// ReleaseRoutes removes the routes of HoldRoutes that lead into these networks.
func (c *Conn) ReleaseRoutes(networks []netip.Prefix) error {
	routes, err := c.ourRoutes()
	errs := []error{err}
	for _, r := range routes {
		if r.Type == unix.RTN_BLACKHOLE && r.Priority == heldMetric && Inside(Prefix(r.Dst), networks) {
			errs = append(errs, c.DeleteRoute(r))
		}
	}
	return errors.Join(errs...)
}

// HostRoutes returns the routes of the main table that [IsHostRoute] is true for.
func (c *Conn) HostRoutes() ([]netlink.Route, error) {
	routes, err := c.ourRoutes()
	return slices.DeleteFunc(routes, func(r netlink.Route) bool { return !IsHostRoute(r) }), err
}

// DeleteRoute deletes a route that was listed; it is not an error if it is already gone.
func (c *Conn) DeleteRoute(r netlink.Route) error {
	err := c.h.RouteDel(&r)
	if errors.Is(err, unix.ESRCH) && r.Protocol == RouteProtocol && !IsHostRoute(r) {
		// The library knows no nexthop objects: a route through one is matched without it.
		err = c.h.RouteDel(&netlink.Route{Dst: r.Dst, Protocol: r.Protocol, Priority: r.Priority, Scope: r.Scope, Table: r.Table})
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("delete route %s: %w", r.Dst, err)
	}
	return nil
}
