package main

import (
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestDrift: what somebody else breaks on the overlay device is mended.
func TestDrift(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2, testNetwork)
			h := c.hosts[0]
			a, b := c.upPair([2]string{mode, modeKernel})
			for name, breakIt := range map[string]func(netlink.Link) error{
				"routes deleted":    deleteRoutes,
				"addresses deleted": deleteAddrs,
				"link down":         netlink.LinkSetDown,
				"MTU changed":       func(l netlink.Link) error { return netlink.LinkSetMTU(l, 600) },
				"device deleted":    netlink.LinkDel,
			} {
				h.Must(func() error {
					l, err := netlink.LinkByName("flannel.1")
					if err != nil {
						return err
					}
					return breakIt(l)
				})
				// The pause before a repair doubles while somebody keeps undoing it, as here.
				eventually(t, 8*time.Second, name+": pod to pod and host to pod", func() error {
					if err := echoWithin(a.NS, b.addr, 1400, 50*time.Millisecond); err != nil {
						return err
					}
					return echoWithin(h.NS, b.addr, 1400, 50*time.Millisecond)
				})
			}
		})
	}
}

func deleteRoutes(l netlink.Link) error {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: l.Attrs().Index, Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	for _, r := range routes {
		if err := netlink.RouteDel(&netlink.Route{Dst: r.Dst, Table: r.Table, Scope: r.Scope, Protocol: r.Protocol}); err != nil {
			return err
		}
	}
	return err
}

func deleteAddrs(l netlink.Link) error {
	addrs, err := netlink.AddrList(l, netlink.FAMILY_V4)
	for _, a := range addrs {
		if err := netlink.AddrDel(l, &a); err != nil {
			return err
		}
	}
	return err
}
