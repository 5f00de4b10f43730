// Package rtnl holds the rtnetlink and sysctl steps that both dataplanes share:
// finding, shaping and deleting the overlay device, its addresses and routes,
// and removing all of it again ([Cleanup]).
//
// Every step reads first and writes only what differs, so that a restart
// rewrites no kernel object and disturbs no listener. Every dump is repeated
// while the kernel reports that it was interrupted. Errors wrap the kernel's errno.
package rtnl

import "fmt"

// Alias marks a network device as made or adopted by overlayd (ip link ... alias).
const Alias = "overlayd"

// TemporaryPrefix begins the name of a device that is to take another's place.
// After a crash one may be left, which Cleanup knows by it.
const TemporaryPrefix = "ovl."

// TemporaryTUNName returns the name of the userspace dataplane's device that is to take another's place.
func TemporaryTUNName(vni uint32) string { return fmt.Sprintf("%st%d", TemporaryPrefix, vni) }

// TemporaryName returns the name of the device over IPv4 or IPv6 that is to take another's place.
func TemporaryName(ipv6 bool, vni uint32) string {
	if ipv6 {
		return fmt.Sprintf("%s6.%d", TemporaryPrefix, vni)
	}
	return fmt.Sprintf("%s%d", TemporaryPrefix, vni)
}

// TemporaryNames returns all names of devices that are to take another's place.
func TemporaryNames(vni uint32) []string {
	return []string{TemporaryName(false, vni), TemporaryName(true, vni), TemporaryTUNName(vni)}
}

// RouteProtocol is the number (rtm_protocol, nh_protocol, IFA_PROTO) under which
// overlayd installs routes, nexthop objects and addresses. It is free in
// iproute2's rt_protos and above the numbers that the kernel's rtnetlink.h
// reserves. What carries it belongs to an overlayd, and if it is on the overlay
// device or leads into the overlay networks, to this one: then it is removed when
// it is not wanted.
const RouteProtocol = 211
