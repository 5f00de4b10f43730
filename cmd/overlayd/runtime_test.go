package main

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestNodeAddressChange: a host whose address is replaced publishes the new one with the same
// subnet, peers follow, and no process starts again.
func TestNodeAddressChange(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2, testNetwork)
			a, b := c.upPair([2]string{mode, modeKernel})
			h, key := c.hosts[0], c.hosts[0].key()
			h.Must(func() error {
				l, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				return netlink.AddrDel(l, &netlink.Addr{IPNet: &net.IPNet{IP: h.addr.AsSlice(), Mask: net.CIDRMask(24, 32)}})
			})
			h.Addr("eth0", "192.0.2.77/24")
			h.DefaultRoute("192.0.2.1")
			began := time.Now()
			eventually(t, patience, "the lease has the new address", func() error {
				if v := c.get(key); !strings.Contains(v, `"PublicIP":"192.0.2.77"`) {
					return fmt.Errorf("it is %s", v)
				}
				return nil
			})
			eventually(t, patience, "pod to pod", func() error { return echoWithin(a.NS, b.addr, 56, 50*time.Millisecond) })
			t.Logf("reached again %s after the new address", time.Since(began))
			if h.key() != key {
				t.Errorf("subnet %s, was %s", h.key(), key)
			}
			if n := linesWith(h.daemon.text(), "session ended: opening another"); n != 1 {
				t.Errorf("%d more sessions were opened:\n%s", n, h.daemon.text())
			}
		})
	}
}

// TestMTUChange: the MTU follows the underlay and the config, in the device and in the subnet
// file, without another session.
func TestMTUChange(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2, testNetwork)
			a, b := c.upPair([2]string{mode, modeKernel})
			there, back := startMeters(t, a, b)
			h := c.hosts[0]
			await := func(mtu int) {
				t.Helper()
				eventually(t, patience, fmt.Sprint("MTU ", mtu), func() error {
					if got := h.env("FLANNEL_MTU"); got != fmt.Sprint(mtu) {
						return fmt.Errorf("subnet file: %s", got)
					}
					return h.Do(func() error {
						l, err := netlink.LinkByName("flannel.1")
						if err == nil && l.Attrs().MTU != mtu {
							err = fmt.Errorf("device: %d", l.Attrs().MTU)
						}
						return err
					})
				})
			}
			await(1450)
			setMTU := func(mtu int) {
				h.Must(func() error {
					l, err := netlink.LinkByName("eth0")
					if err != nil {
						return err
					}
					return netlink.LinkSetMTU(l, mtu)
				})
			}
			setMTU(1400)
			await(1350)
			setMTU(1500)
			await(1450)
			c.put("/coreos.com/network/config", strings.Replace(testNetwork, `"vxlan"`, `"vxlan","MTU":1300`, 1))
			await(1250)
			if lost := there.finish() + back.finish(); lost > 0 {
				t.Errorf("%d datagrams lost", lost)
			}
			if strings.Contains(h.daemon.text(), "session ended") {
				t.Errorf("another session:\n%s", h.daemon.text())
			}
		})
	}
}

// TestConfigChange: daemons take up another port, VNI and network while they run, and nothing
// of the old ones is left.
func TestConfigChange(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2, testNetwork)
			c.upPair([2]string{mode, modeKernel}, "--config-hold", "0")
			c.put("/coreos.com/network/config", `{"Network":"10.9.0.0/16","Backend":{"Type":"vxlan","VNI":7,"Port":4789}}`)
			for _, h := range c.hosts {
				eventually(t, patience, "new subnet", func() error {
					if p := h.gateway(); !netip.MustParsePrefix("10.9.0.0/16").Contains(p.Addr()) {
						return fmt.Errorf("still %s", p)
					}
					return nil
				})
				h.Must(func() error {
					if _, err := netlink.LinkByName("flannel.1"); err == nil {
						return fmt.Errorf("flannel.1 is left")
					}
					routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
					for _, r := range routes {
						if strings.HasPrefix(r.Dst.String(), "10.5.") && !strings.HasPrefix(linkName(r.LinkIndex), "pod") {
							err = fmt.Errorf("left: %s", r)
						}
					}
					return err
				})
			}
			a, b := c.hosts[0].pod(1, 0), c.hosts[1].pod(1, 0)
			warmUp(t, a, b)
		})
	}
}

func linkName(index int) string {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return ""
	}
	return l.Attrs().Name
}
