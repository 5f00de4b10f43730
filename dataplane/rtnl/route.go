package rtnl

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrRouteTaken says that somebody else owns a route to that destination:
// another protocol or another device. It is never replaced.
var ErrRouteTaken = errors.New("somebody else has a route to it")

// SetRoutes makes the overlayd routes on the link (those with [RouteProtocol] in
// the main table) be exactly one link-scope route per destination. A destination
// that somebody else already routes is an error that wraps [ErrRouteTaken], and
// does not keep the others from being set.
func (c *Conn) SetRoutes(index int, dsts []netip.Prefix) error {
	have, err := c.ourRoutes(index)
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range dsts {
		if slices.ContainsFunc(have, func(r netlink.Route) bool { return isLinkRoute(r, d) }) {
			continue
		}
		err := c.h.RouteAdd(&netlink.Route{LinkIndex: index, Dst: IPNet(d), Scope: netlink.SCOPE_LINK, Protocol: RouteProtocol})
		if errors.Is(err, unix.EEXIST) {
			err = ErrRouteTaken
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("add route %s: %w", d, err))
		}
	}
	for _, r := range have {
		if slices.ContainsFunc(dsts, func(d netip.Prefix) bool { return isLinkRoute(r, d) }) {
			continue
		}
		if err := c.h.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("delete route %s: %w", r.Dst, err))
		}
	}
	return errors.Join(errs...)
}

func isLinkRoute(r netlink.Route, dst netip.Prefix) bool {
	return Prefix(r.Dst) == dst && r.Gw == nil && (r.Scope == netlink.SCOPE_LINK || dst.Addr().Is6())
}

// ourRoutes returns overlayd's routes on one link, or with index 0 on all.
func (c *Conn) ourRoutes(index int) ([]netlink.Route, error) {
	filter := &netlink.Route{Protocol: RouteProtocol, LinkIndex: index}
	mask := netlink.RT_FILTER_PROTOCOL
	if index != 0 {
		mask |= netlink.RT_FILTER_OIF
	}
	routes, err := Retry(func() ([]netlink.Route, error) {
		return c.h.RouteListFiltered(netlink.FAMILY_ALL, filter, mask)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes of protocol %d: %w", RouteProtocol, err)
	}
	return routes, nil
}
