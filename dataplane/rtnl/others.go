package rtnl

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// OtherRoute is a route that is not overlayd's.
type OtherRoute struct {
	Dst  netip.Prefix
	Link int    // index of its interface; 0 without one
	Text string // much as ip(8) writes it
}

// RoutesOfOthers returns the routes of the main table to each of dsts that are not overlayd's. It
// lists all routes of the host.
func (c *Conn) RoutesOfOthers(dsts []netip.Prefix) ([]OtherRoute, error) {
	others, err := Retry(func() (others []netlink.Route, err error) {
		filter := &netlink.Route{Table: unix.RT_TABLE_MAIN}
		err = c.h.RouteListFilteredIter(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
			if r.Protocol != RouteProtocol && slices.Contains(dsts, Prefix(r.Dst)) {
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
	if r.Type != unix.RTN_UNICAST {
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

// ParseRoute reads the destination, gateway, type and protocol of a route message. main
// reports whether it is in the main table; ok is false if it is cached or malformed.
func ParseRoute(body []byte) (r netlink.Route, main, ok bool) {
	if len(body) < unix.SizeofRtMsg || len(body)%unix.NLMSG_ALIGNTO != 0 { // attributes are padded; netlink v1.3.1 relies on it
		return r, false, false
	}
	h := nl.DeserializeRtMsg(body)
	attrs, err := nl.ParseRouteAttr(body[unix.SizeofRtMsg:])
	if err != nil || h.Flags&unix.RTM_F_CLONED != 0 {
		return r, false, false
	}
	zero := netip.IPv6Unspecified()
	if h.Family == unix.AF_INET {
		zero = netip.IPv4Unspecified()
	}
	dst, via := zero, netip.Addr{}
	for _, a := range attrs {
		switch addr, valid := netip.AddrFromSlice(a.Value); {
		case !valid || addr.BitLen() != zero.BitLen():
		case a.Attr.Type == unix.RTA_DST:
			dst = addr
		case a.Attr.Type == unix.RTA_GATEWAY:
			via = addr
		}
	}
	p := netip.PrefixFrom(dst, int(h.Dst_len))
	if !p.IsValid() {
		return r, false, false
	}
	r = netlink.Route{Dst: IPNet(p), Protocol: netlink.RouteProtocol(h.Protocol), Type: int(h.Type), Flags: int(h.Flags)}
	if via.IsValid() {
		r.Gw = via.AsSlice()
	}
	return r, h.Table == unix.RT_TABLE_MAIN, true
}
