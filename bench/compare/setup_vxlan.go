package main

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/bench/testbed"
	"github.com/overlayd/overlayd/encap"
)

// flannelLink is the overlay device of VNI 1, flannel's default.
const flannelLink = "flannel.1"

func setupVeth(_ context.Context, p *pair) error {
	p.a.overlay, p.b.overlay = p.a.underlay, p.b.underlay
	return nil
}

// The subnets and MACs of hosts without a daemon that chooses them.
var (
	vxlanSubnets = [2]netip.Prefix{netip.MustParsePrefix("10.99.1.0/24"), netip.MustParsePrefix("10.99.2.0/24")}
	vxlanMACs    = [2]encap.MAC{{0x02, 0, 0, 0, 0, 1}, {0x02, 0, 0, 0, 0, 2}}
)

// setupVXLAN does with netlink what flannel does (v0.28).
func setupVXLAN(_ context.Context, p *pair) error {
	for i := range p.hosts() {
		if err := p.joinVXLAN(i); err != nil {
			return err
		}
	}
	return nil
}

// joinVXLAN adds the device of host i, and the other host as its peer.
func (p *pair) joinVXLAN(i int) error {
	h, peer := p.hosts()[i], p.hosts()[1-i]
	h.overlay = vxlanSubnets[i].Addr()
	err := h.addVXLAN(vxlanMACs[i])
	if err == nil {
		err = h.addVXLANPeer(vxlanSubnets[1-i], vxlanMACs[1-i], peer.underlay)
	}
	if err != nil {
		return fmt.Errorf("host %s: %w", h.name, err)
	}
	return nil
}

// addVXLAN adds the device with the host's overlay address.
func (h *host) addVXLAN(mac encap.MAC) error {
	under, err := h.ns.Link(underlayLink)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.TxQLen = flannelLink, mac[:], 0
	attrs.MTU = under.Attrs().MTU - 50
	err = h.ns.Netlink().LinkAdd(&netlink.Vxlan{
		LinkAttrs: attrs, VxlanId: 1, VtepDevIndex: under.Attrs().Index, SrcAddr: h.underlay.AsSlice(), Port: 8472,
	})
	if err != nil {
		return fmt.Errorf("add vxlan device: %w", err)
	}
	return h.setLink(flannelLink, netip.PrefixFrom(h.overlay, 32), 0)
}

// addVXLANPeer adds neighbour, FDB entry and route of the other host.
func (h *host) addVXLANPeer(subnet netip.Prefix, mac encap.MAC, underlay netip.Addr) error {
	l, err := h.ns.Link(flannelLink)
	if err != nil {
		return err
	}
	index := l.Attrs().Index
	for _, n := range []*netlink.Neigh{
		{LinkIndex: index, State: netlink.NUD_PERMANENT, Type: unix.RTN_UNICAST, IP: subnet.Addr().AsSlice(), HardwareAddr: mac[:]},
		{LinkIndex: index, State: netlink.NUD_PERMANENT, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF, IP: underlay.AsSlice(), HardwareAddr: mac[:]},
	} {
		if err := h.ns.Netlink().NeighSet(n); err != nil {
			return fmt.Errorf("add neighbour %s: %w", n, err)
		}
	}
	return h.addRoute(flannelLink, subnet, subnet.Addr())
}

// addRoute adds the route to a subnet by a link, to a gateway if there is one.
func (h *host) addRoute(link string, subnet netip.Prefix, gateway netip.Addr) error {
	l, err := h.ns.Link(link)
	if err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: testbed.IPNet(subnet)}
	if gateway.IsValid() {
		route.Scope, route.Gw, route.Flags = netlink.SCOPE_UNIVERSE, gateway.AsSlice(), int(netlink.FLAG_ONLINK)
	}
	if err := h.ns.Netlink().RouteReplace(route); err != nil {
		return fmt.Errorf("add route %s: %w", subnet, err)
	}
	return nil
}
