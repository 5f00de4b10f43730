package rtnl

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtmsg"
)

// ourRoutes returns overlayd's routes in the main table. The kernel leaves out the others
// (NETLINK_GET_STRICT_CHK, Linux 4.20): to list 100 000 routes of a routing daemon takes 100 ms.
func (c *Conn) ourRoutes() ([]netlink.Route, error) {
	var routes []netlink.Route
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		dump := func() ([][]byte, error) {
			r := c.request(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
			r.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family), Table: unix.RT_TABLE_MAIN, Protocol: RouteProtocol}})
			return r.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE)
		}
		msgs, err := Retry(dump)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
			continue // there is no such table yet, or no IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("list routes of protocol %d: %w", RouteProtocol, err)
		}
		for _, m := range msgs {
			if r, ok := ParseRoute(m); ok && r.Table == unix.RT_TABLE_MAIN && r.Protocol == RouteProtocol { // old kernels send all
				routes = append(routes, r)
			}
		}
	}
	return routes, nil
}

// ParseRoute reads a route message. ok is false if it is malformed, or the route is a cached one. The result
// refers to m.
func ParseRoute(m []byte) (r netlink.Route, ok bool) {
	if len(m) < unix.SizeofRtMsg || len(m)%unix.NLMSG_ALIGNTO != 0 { // attributes are padded; netlink v1.3.1 relies on it
		return r, false
	}
	h := nl.DeserializeRtMsg(m)
	attrs, err := nl.ParseRouteAttr(m[unix.SizeofRtMsg:])
	if err != nil || h.Flags&unix.RTM_F_CLONED != 0 {
		return r, false
	}
	r = netlink.Route{Family: int(h.Family), Table: int(h.Table), Protocol: netlink.RouteProtocol(h.Protocol), Scope: netlink.Scope(h.Scope),
		Type: int(h.Type), Tos: int(h.Tos), Flags: int(h.Flags)}
	dst := netip.IPv6Unspecified()
	if h.Family == unix.AF_INET {
		dst = netip.IPv4Unspecified()
	}
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(a.Value)
		case unix.RTA_GATEWAY:
			r.Gw = a.Value
		case unix.RTA_VIA:
			via := &netlink.Via{}
			if via.Decode(a.Value) == nil {
				r.Via = via
			}
		case unix.RTA_PREFSRC:
			r.Src = a.Value
		case unix.RTA_OIF:
			r.LinkIndex = int(rtmsg.Uint32(a.Value))
		case unix.RTA_PRIORITY:
			r.Priority = int(rtmsg.Uint32(a.Value))
		}
	}
	p := netip.PrefixFrom(dst, int(h.Dst_len))
	r.Dst = IPNet(p)
	return r, p.IsValid()
}
