package leases

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/overlayd/overlayd/control"
)

// ParseReservation reads one or two subnets, joined by a comma, and the public IPs.
func ParseReservation(args []string, public, public6 string) (l control.Lease, err error) {
	if len(args) != 1 {
		return l, errors.New("want one argument: SUBNET, or SUBNET,IPV6-SUBNET")
	}
	for text := range strings.SplitSeq(args[0], ",") {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil || p != p.Masked() || p.Addr().Is4In6():
			return l, fmt.Errorf("%q is not a subnet: want one such as 10.5.34.0/24", text)
		case p.Addr().Is4() && !l.Subnet.IsValid():
			l.Subnet = p
		case p.Addr().Is6() && !l.IPv6Subnet.IsValid():
			l.IPv6Subnet = p
		default:
			return l, fmt.Errorf("%q: want one subnet of each family at most", args[0])
		}
	}
	if public == "" && public6 == "" {
		return l, errors.New("--public-ip, --public-ipv6: want the address that the node publishes")
	}
	if l.PublicIP, err = publicAddr("public-ip", public, netip.Addr.Is4); err != nil {
		return l, err
	}
	l.PublicIPv6, err = publicAddr("public-ipv6", public6, func(a netip.Addr) bool { return a.Is6() && !a.Is4In6() && a.Zone() == "" })
	return l, err
}

// publicAddr reads a public address, which other hosts must be able to send to; empty text means that no address is given.
func publicAddr(flag, text string, ok func(netip.Addr) bool) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil || !ok(a) || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() {
		return a, fmt.Errorf("--%s: %q: want a unicast address of its family", flag, text)
	}
	return a, nil
}
