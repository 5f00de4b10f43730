package testbed

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// bridge is the link that joins the hosts of a Testbed.
const bridge = "br0"

// Netlink returns the connection into the namespace, which n owns.
func (n *Namespace) Netlink() *netlink.Handle { return n.nl }

// Link finds a link by its name.
func (n *Namespace) Link(name string) (netlink.Link, error) {
	l, err := n.nl.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("%s: find link %s: %w", n.Name, name, err)
	}
	return l, nil
}

// HasLink reports whether there is a link of this name.
func (n *Namespace) HasLink(name string) bool {
	_, err := n.nl.LinkByName(name)
	return err == nil
}

// SetUp sets a link up.
func (n *Namespace) SetUp(name string) error {
	l, err := n.Link(name)
	if err != nil {
		return err
	}
	if err := n.nl.LinkSetUp(l); err != nil {
		return fmt.Errorf("%s: set link %s up: %w", n.Name, name, err)
	}
	return nil
}

// SetMTU sets the MTU of a link.
func (n *Namespace) SetMTU(name string, mtu int) error {
	l, err := n.Link(name)
	if err != nil {
		return err
	}
	if err := n.nl.LinkSetMTU(l, mtu); err != nil {
		return fmt.Errorf("%s: set MTU of link %s: %w", n.Name, name, err)
	}
	return nil
}

// AddAddr adds an address with its prefix length to a link.
func (n *Namespace) AddAddr(link string, p netip.Prefix) error {
	l, err := n.Link(link)
	if err != nil {
		return err
	}
	if err := n.nl.AddrAdd(l, &netlink.Addr{IPNet: IPNet(p)}); err != nil {
		return fmt.Errorf("%s: add address %s to %s: %w", n.Name, p, link, err)
	}
	return nil
}

// AddDefaultRoute adds a default route through a gateway.
func (n *Namespace) AddDefaultRoute(gateway netip.Addr) error {
	if err := n.nl.RouteAdd(&netlink.Route{Gw: gateway.AsSlice()}); err != nil {
		return fmt.Errorf("%s: add default route through %s: %w", n.Name, gateway, err)
	}
	return nil
}

// AddVeth joins n and peer by a veth pair and sets both ends up. An mtu of 0 keeps
// the kernel's default. The offloads are the kernel's too.
func (n *Namespace) AddVeth(name string, peer *Namespace, peerName string, mtu int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: peerName, PeerNamespace: netlink.NsFd(peer.handle), PeerMTU: uint32(mtu)}
	if err := n.nl.LinkAdd(veth); err != nil {
		return fmt.Errorf("%s: add veth %s to %s: %w", n.Name, name, peer.Name, err)
	}
	return errors.Join(n.SetUp(name), peer.SetUp(peerName))
}

// AddBridge adds the bridge that AddPort plugs links into.
func (n *Namespace) AddBridge() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = bridge
	if err := n.nl.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("%s: add bridge: %w", n.Name, err)
	}
	return n.SetUp(bridge)
}

// AddPort makes a link a port of the bridge.
func (n *Namespace) AddPort(link string) error {
	l, err := n.Link(link)
	if err != nil {
		return err
	}
	br, err := n.Link(bridge)
	if err != nil {
		return err
	}
	if err := n.nl.LinkSetMaster(l, br); err != nil {
		return fmt.Errorf("%s: add %s to the bridge: %w", n.Name, link, err)
	}
	return nil
}

// ProbeVXLAN returns why the kernel cannot make vxlan devices, or nil if it can.
func (n *Namespace) ProbeVXLAN() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "probe0"
	if err := n.nl.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs, VxlanId: 1, Port: 8472}); err != nil {
		return err
	}
	l, err := n.Link(attrs.Name)
	if err != nil {
		return err
	}
	return n.nl.LinkDel(l)
}

// IPNet converts a prefix to the form that package netlink takes.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
