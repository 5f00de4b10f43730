package rtnl

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// OtherRoute is a route that is not overlayd's.
type OtherRoute struct {
	Dst  netip.Prefix
	Link int    // index of its interface; 0 without one
	Text string // much as ip(8) writes it
}

// RoutesOfOthers returns the routes of the main table that are not overlayd's, to destinations that are wanted. It
// lists all routes of the host.
func (c *Conn) RoutesOfOthers(wanted func(dst netip.Prefix) bool) ([]OtherRoute, error) {
	others, err := Retry(func() (others []netlink.Route, err error) {
		filter := &netlink.Route{Table: unix.RT_TABLE_MAIN}
		err = c.h.RouteListFilteredIter(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
			if r.Protocol != RouteProtocol && wanted(Prefix(r.Dst)) {
				others = append(others, r)
			}
			return true
		})
		return others, err
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	found := make([]OtherRoute, len(others))
	for i, r := range others {
		found[i] = OtherRoute{Prefix(r.Dst), r.LinkIndex, c.describe(r)}
	}
	return found, nil
}

// describe writes a route much as ip(8) does.
func (c *Conn) describe(r netlink.Route) string {
	text := r.Dst.String()
	switch r.Type {
	case unix.RTN_UNICAST:
	case unix.RTN_BLACKHOLE:
		text = "blackhole " + text
	case unix.RTN_UNREACHABLE:
		text = "unreachable " + text
	case unix.RTN_PROHIBIT:
		text = "prohibit " + text
	default:
		text = fmt.Sprintf("%s of type %d", text, r.Type)
	}
	if r.Gw != nil {
		text += " via " + r.Gw.String()
	}
	if l, err := c.LinkByIndex(r.LinkIndex); err == nil {
		text += " dev " + l.Attrs().Name
	}
	return text + " proto " + r.Protocol.String()
}
