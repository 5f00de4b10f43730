package main

import (
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// kernelObjects is what a kernel dataplane has programmed, each object as text.
type kernelObjects struct{ routes, neighbours, fdb, nexthops []string }

func objects(t *testing.T, h *host) (o kernelObjects) {
	t.Helper()
	h.Must(func() error {
		link, err := netlink.LinkByName("flannel.1")
		if err != nil {
			return err
		}
		index := link.Attrs().Index
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return err
		}
		for _, r := range routes {
			if r.LinkIndex == index {
				o.routes = append(o.routes, fmt.Sprintf("%v via %v", r.Dst, r.Gw))
			}
		}
		for family, to := range map[int]*[]string{netlink.FAMILY_V4: &o.neighbours, unix.AF_BRIDGE: &o.fdb} {
			neighbours, err := netlink.NeighList(index, family)
			if err != nil {
				return err
			}
			for _, n := range neighbours {
				*to = append(*to, fmt.Sprintf("%v %v", n.IP, n.HardwareAddr))
			}
		}
		request := nl.NewNetlinkRequest(unix.RTM_GETNEXTHOP, unix.NLM_F_DUMP)
		request.AddRawData(make([]byte, 8)) // struct nhmsg: all families
		messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEXTHOP)
		for _, m := range messages {
			o.nexthops = append(o.nexthops, fmt.Sprintf("%x", m))
		}
		return err
	})
	for _, s := range [][]string{o.routes, o.neighbours, o.fdb, o.nexthops} {
		slices.Sort(s)
	}
	return o
}

// listener collects what the kernel says of changes to objects of flannel.1.
type listener struct {
	socket *nl.NetlinkSocket
	index  int
}

func listen(t *testing.T, h *host) *listener {
	t.Helper()
	l := new(listener)
	h.Must(func() error {
		link, err := netlink.LinkByName("flannel.1")
		if err == nil {
			l.index = link.Attrs().Index
		}
		return err
	})
	var err error
	l.socket, err = nl.SubscribeAt(h.Handle(), netns.None(), unix.NETLINK_ROUTE,
		unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_NEXTHOP)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.socket.Close)
	return l
}

// events returns what was reported so far, one line for each.
func (l *listener) events(t *testing.T) (seen []string) {
	t.Helper()
	if err := l.socket.SetReceiveTimeout(&unix.Timeval{Usec: 100_000}); err != nil {
		t.Fatal(err)
	}
	for {
		messages, _, err := l.socket.Receive()
		if err == unix.EAGAIN {
			return seen
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range messages {
			if event := l.describe(m.Header.Type, m.Data); event != "" {
				seen = append(seen, event)
			}
		}
	}
}

// describe leaves out what the kernel does by itself on other links.
func (l *listener) describe(kind uint16, data []byte) string {
	native := nl.NativeEndian()
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH, unix.RTM_NEWADDR, unix.RTM_DELADDR:
		if int(int32(native.Uint32(data[4:]))) != l.index { // ifi_index, ndm_ifindex, ifa_index
			return ""
		}
	}
	return fmt.Sprintf("message %d: %x", kind, data)
}

func hardwareAddr(t *testing.T, h *host) (mac net.HardwareAddr) {
	t.Helper()
	h.Must(func() error {
		link, err := netlink.LinkByName("flannel.1")
		if err == nil {
			mac = link.Attrs().HardwareAddr
		}
		return err
	})
	return mac
}
