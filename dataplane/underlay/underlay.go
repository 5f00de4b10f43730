// Package underlay chooses the interface and the address that carry the overlay.
//
// select.go decides, from plain values; list.go asks the kernel for them.
package underlay

import (
	"net/netip"
)

// Options say which interface to use. What names an interface is tried in the
// order of the fields, and the first match wins; only where none of them is given
// does PublicIP, and after it the default route, decide.
type Options struct {
	// Iface holds names or IPv4 addresses of interfaces (--iface).
	Iface []string
	// IfaceRegex holds Go regular expressions (--iface-regex). Each is matched
	// against the IPv4 addresses of all interfaces first and then against their names.
	IfaceRegex []string
	// CanReach asks for the interface and source address of the route to it
	// (--iface-can-reach). An address of this host asks for the interface that has it.
	CanReach netip.Addr
	// PublicIP is published instead of the interface's address (--public-ip). The
	// host need not own it: behind NAT it does not.
	PublicIP netip.Addr
}

// Interface is the host's end of the underlay. It is a comparable value.
type Interface struct {
	Name   string
	Index  int
	MTU    int        // in bytes; at least 1
	Addr   netip.Addr // local IPv4 address: the source of what is sent
	Addr6  netip.Addr // local IPv6 address; not valid, as the IPv6 underlay does not exist yet
	Public netip.Addr // IPv4 address that other nodes send to; Addr unless PublicIP was given
}

// Select chooses the interface for o in the network namespace of the calling
// thread. An error names each flag tried and its value, and where nothing matched also
// every interface that was looked at and why it was not taken.
func Select(o Options) (Interface, error) {
	c, err := o.criteria()
	if err != nil {
		return Interface{}, err
	}
	h, err := readHost(c)
	if err != nil {
		return Interface{}, err
	}
	return c.choose(h)
}
