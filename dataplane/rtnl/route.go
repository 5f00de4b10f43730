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
// It is never replaced.
var ErrRouteTaken = errors.New("somebody else has a route to it")

// SetRoutes makes the overlayd routes on the link (those with [RouteProtocol] in
// the main table) be exactly one link-scope route per destination. What an
// overlayd with another VNI or dataplane left on another link is removed if it leads
// into one of the destinations: two live overlays of one host have no address in
// common. Host routes ([IsHostRoute]) are left alone. A destination that somebody else
// already routes is an error that wraps [ErrRouteTaken], and does not keep the others
// from being set.
func (c *Conn) SetRoutes(index int, dsts []netip.Prefix) error {
	all, err := c.ourRoutes()
	if err != nil {
		return err
	}
	missing, conflicting, stale := planRoutes(all, index, dsts)
	var errs []error
	remove := func(routes []netlink.Route) {
		for _, r := range routes {
			c.changing(dataplane.OpDelete, KindRoute, r.Dst.String(), fmt.Sprintf("link %d", r.LinkIndex), "")
			if err := c.DeleteRoute(r); err != nil {
				errs = append(errs, err)
			}
		}
	}
	remove(conflicting)
	for _, d := range missing {
		c.changing(dataplane.OpAdd, KindRoute, d.String(), "", fmt.Sprintf("link %d", index))
		err := c.h.RouteAdd(&netlink.Route{LinkIndex: index, Dst: IPNet(d), Scope: netlink.SCOPE_LINK, Protocol: RouteProtocol})
		if errors.Is(err, unix.EEXIST) {
			err = ErrRouteTaken
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("add route %s: %w", d, err))
		}
	}
	remove(stale)
	return errors.Join(errs...)
}

// planRoutes returns the destinations without their route, and which of all
// overlayd routes must go: those to one of the destinations before
// that can be added, the stale ones after it.
func planRoutes(all []netlink.Route, index int, dsts []netip.Prefix) (missing []netip.Prefix, conflicting, stale []netlink.Route) {
	done := map[netip.Prefix]bool{}
	for _, r := range all {
		dst := Prefix(r.Dst)
		switch {
		case IsHostRoute(r):
		case slices.Contains(dsts, dst) && !done[dst] && isLinkRoute(r, index):
			done[dst] = true
		case slices.Contains(dsts, dst):
			conflicting = append(conflicting, r)
		case r.LinkIndex == index || Inside(dst, dsts):
			stale = append(stale, r)
		}
	}
	for _, d := range dsts {
		if !done[d] {
			missing = append(missing, d)
		}
	}
	return missing, conflicting, stale
}

// IsHostRoute reports whether a route of [RouteProtocol] is one that does not lead to
// an overlay device, which are dataplane/hostroute's and no dataplane's: a direct route,
// whose gateway is an underlay address and needs no onlink flag (those of the dataplanes
// have no gateway, or the subnet's base address, on link), or a blackhole.
func IsHostRoute(r netlink.Route) bool {
	if r.Protocol != RouteProtocol || r.Dst == nil {
		return false
	}
	return r.Type == unix.RTN_BLACKHOLE || r.Type == unix.RTN_UNICAST && r.Gw != nil &&
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
