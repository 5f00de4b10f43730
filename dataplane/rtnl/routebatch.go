package rtnl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtmsg"
)

// A host may have a route for each of thousands of subnets: many of them are changed per system call.

// addRoutes adds routes, or puts them in the place of other ones of overlayd.
func (c *Conn) addRoutes(routes []netlink.Route, replaces map[netip.Prefix]bool) (errs []error) {
	encode := func(i int, b []byte) []byte {
		flags := uint16(unix.NLM_F_CREATE | unix.NLM_F_EXCL)
		if replaces[Prefix(routes[i].Dst)] {
			flags = unix.NLM_F_CREATE | unix.NLM_F_REPLACE
		}
		return routeMessage(b, unix.RTM_NEWROUTE, flags, routes[i])
	}
	done := func(i int, err error) {
		r, op := routes[i], dataplane.OpAdd
		if errors.Is(err, unix.EEXIST) { // and so it stays, however often it is tried
			errs = append(errs, &RouteError{Prefix(r.Dst), ErrRouteTaken})
			return
		}
		if replaces[Prefix(r.Dst)] {
			op = dataplane.OpReplace
		}
		if err != nil {
			errs = append(errs, &RouteError{Prefix(r.Dst), err})
			return
		}
		c.changed(op, KindRoute, r.Dst.String(), "", fmt.Sprintf("link %d", r.LinkIndex))
	}
	if err := c.transact(len(routes), encode, done); err != nil {
		errs = append(errs, fmt.Errorf("add routes: %w", err))
	}
	return errs
}

// deleteRoutes deletes routes of overlayd that were listed.
func (c *Conn) deleteRoutes(routes []netlink.Route) (errs []error) {
	encode := func(i int, b []byte) []byte {
		return routeMessage(b, unix.RTM_DELROUTE, 0, routes[i])
	}
	deleted := func(r netlink.Route) {
		c.changed(dataplane.OpDelete, KindRoute, r.Dst.String(), fmt.Sprintf("link %d", r.LinkIndex), "")
	}
	var again []netlink.Route // through nexthop objects, or gone
	done := func(i int, err error) {
		if err != nil {
			again = append(again, routes[i])
			return
		}
		deleted(routes[i])
	}
	if err := c.transact(len(routes), encode, done); err != nil {
		errs = append(errs, fmt.Errorf("delete routes: %w", err))
	}
	for _, r := range again {
		if err := c.DeleteRoute(r); err != nil {
			errs = append(errs, err)
			continue
		}
		deleted(r)
	}
	return errs
}

// transact sends messages, and gives the result of each to done.
func (c *Conn) transact(n int, encode func(i int, b []byte) []byte, done func(i int, err error)) error {
	if n == 0 {
		return nil
	}
	c.batching.Lock()
	defer c.batching.Unlock()
	return c.batch.Transact(context.Background(), n, encode, func(i int, _ []byte, err error) { done(i, err) })
}

// routeMessage appends a request about a route of the main table.
func routeMessage(b []byte, typ, flags uint16, r netlink.Route) []byte {
	start, dst := len(b), Prefix(r.Dst)
	h := make([]byte, unix.SizeofRtMsg)
	h[0], h[1], h[4], h[5], h[6] = rtmsg.Family(dst.Addr()), uint8(dst.Bits()), unix.RT_TABLE_MAIN, uint8(r.Protocol), uint8(r.Scope)
	h[7] = uint8(max(r.Type, unix.RTN_UNICAST))
	binary.NativeEndian.PutUint32(h[8:], uint32(r.Flags&unix.RTNH_F_ONLINK))
	b = rtmsg.AttrAddr(rtmsg.Begin(b, typ, flags, h), unix.RTA_DST, dst.Addr())
	if r.Priority != 0 {
		b = rtmsg.AttrUint32(b, unix.RTA_PRIORITY, uint32(r.Priority))
	}
	if r.LinkIndex != 0 {
		b = rtmsg.AttrUint32(b, unix.RTA_OIF, uint32(r.LinkIndex))
	}
	if gw, ok := netip.AddrFromSlice(r.Gw); ok {
		b = rtmsg.AttrAddr(b, unix.RTA_GATEWAY, gw.Unmap())
	}
	return rtmsg.Finish(b, start)
}
