package firewall

import (
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane/nft"
)

// Overlay returns packets that stand for what a host forwards between its own subnets and the rest of their networks.
// devices are those of the overlay, for IPv4 and for IPv6 underlays; without any, packets leave by the underlay.
func Overlay(subnets, networks []netip.Prefix, devices []string) (packets []Packet) {
	for _, own := range subnets {
		pod, peer := hostIn(own), netip.Addr{}
		if i := slices.IndexFunc(networks, func(n netip.Prefix) bool { return n.Contains(own.Addr()) }); i >= 0 {
			peer = beside(networks[i], own)
		}
		inside := PodDevice(own, devices)
		for _, overlay := range present(devices) {
			packets = append(packets, Through(pod, peer, inside, overlay), Through(peer, pod, overlay, inside))
		}
	}
	return packets
}

func familyOf(a netip.Addr) nft.Family {
	if a.Is4() {
		return nft.IPv4
	}
	return nft.IPv6
}

// hostIn is an address of a subnet that a pod may have: the one after the gateway's.
func hostIn(p netip.Prefix) netip.Addr { return p.Addr().Next().Next() }

// beside is an address of the network that is not in the own subnet: in the subnet before it or behind it.
func beside(network, own netip.Prefix) netip.Addr {
	if before := network.Addr().Next().Next(); !own.Contains(before) {
		return before
	}
	last := own.Addr()
	b := last.AsSlice()
	for i := own.Bits(); i < last.BitLen(); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ = netip.AddrFromSlice(b)
	if behind := last.Next().Next(); network.Contains(behind) {
		return behind
	}
	return netip.Addr{} // the subnet is all of the network
}

// present are the devices that this host has; an unknown one if it has none.
func present(devices []string) (names []string) {
	for _, name := range devices {
		if _, err := net.InterfaceByName(name); err == nil {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return []string{""}
	}
	return names
}

// PodDevice is the device behind which this host has the pods of a subnet, such as cni0; empty if that cannot be told.
// devices are those of the overlay.
func PodDevice(own netip.Prefix, devices []string) string {
	routes, err := netlink.RouteGet(net.IP(hostIn(own).AsSlice()))
	if err != nil || len(routes) != 1 || routes[0].Gw != nil {
		return ""
	}
	l, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil || slices.Contains(devices, l.Attrs().Name) || l.Attrs().Flags&net.FlagLoopback != 0 {
		return ""
	}
	return l.Attrs().Name
}
