package rtnl

import (
	"net"
	"net/netip"
)

// IPNet converts to the form that the netlink library takes.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Prefix converts from the form that the netlink library returns. IPv4 is never
// in its IPv6-mapped form. It is invalid if n is nil or malformed.
func Prefix(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	a, _ := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	a = a.Unmap()
	if bits != a.BitLen() {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(a, ones)
}
