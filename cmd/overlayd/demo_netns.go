package main

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// demoNS is a named network namespace with its loopback up.
type demoNS struct {
	name   string
	handle netns.NsHandle
}

func newDemoNS(name string) (*demoNS, error) {
	n := &demoNS{name: name, handle: netns.None()}
	err := onOwnThread(func() (err error) {
		n.handle, err = netns.NewNamed(name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make network namespace %s: %w (in a container the demo needs --privileged)", name, err)
	}
	return n, n.do(func() error { return setUp("lo") })
}

// onOwnThread runs f on a thread that ends with it, so that f may leave the
// thread in any namespace.
func onOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock: that is what ends the thread
		done <- f()
	}()
	return <-done
}

// do runs f in the namespace. Sockets and processes that f makes stay in it;
// goroutines that it starts do not.
func (n *demoNS) do(f func() error) error {
	return onOwnThread(func() error {
		if err := netns.Set(n.handle); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", n.name, err)
		}
		return f()
	})
}

// probeVXLAN says why the kernel has no vxlan device.
func (n *demoNS) probeVXLAN() error {
	return n.do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "probe0"
		if err := netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs, VxlanId: 1, Port: 8472}); err != nil {
			return err
		}
		l, err := netlink.LinkByName(attrs.Name)
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
}

func (n *demoNS) addBridge() error {
	return n.do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "br0"
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("add bridge: %w", err)
		}
		return setUp("br0")
	})
}

func (n *demoNS) addToBridge(port string) error {
	return n.do(func() error {
		l, err := netlink.LinkByName(port)
		if err != nil {
			return fmt.Errorf("find link %s: %w", port, err)
		}
		br, err := netlink.LinkByName("br0")
		if err != nil {
			return fmt.Errorf("find bridge: %w", err)
		}
		return netlink.LinkSetMaster(l, br)
	})
}

// addVeth joins n and peer by a veth pair, up on both sides. An mtu of 0 leaves
// the kernel's, and so are all offloads left.
func (n *demoNS) addVeth(name string, peer *demoNS, peerName string, mtu int) error {
	err := n.do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = name, mtu
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: peerName, PeerNamespace: netlink.NsFd(peer.handle), PeerMTU: uint32(mtu)}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("add veth %s to %s: %w", name, peer.name, err)
		}
		return setUp(name)
	})
	if err != nil {
		return err
	}
	return peer.do(func() error { return setUp(peerName) })
}

func (n *demoNS) addAddr(link string, p netip.Prefix) error {
	return n.do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return fmt.Errorf("find link %s: %w", link, err)
		}
		ipnet := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
		if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: ipnet}); err != nil {
			return fmt.Errorf("add address %s to %s: %w", p, link, err)
		}
		return nil
	})
}

func (n *demoNS) addDefaultRoute(gateway netip.Addr) error {
	return n.do(func() error {
		if err := netlink.RouteAdd(&netlink.Route{Gw: gateway.AsSlice()}); err != nil {
			return fmt.Errorf("add default route by way of %s: %w", gateway, err)
		}
		return nil
	})
}

func setUp(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}
