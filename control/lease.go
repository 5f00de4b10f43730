package control

import (
	"net/netip"
	"time"

	"github.com/overlayd/overlayd/encap"
)

// Lease is a node's right to an overlay subnet (one per family) until it expires,
// together with what other nodes need to reach it. It is a comparable value.
//
// A VTEP's family is that of the underlay. There is one of each family that has a
// subnet, as with flannel, or else the other's for both: an overlay of one
// family can run over an underlay of the other.
type Lease struct {
	Subnet      netip.Prefix // IPv4, masked; not valid in an IPv6-only lease
	IPv6Subnet  netip.Prefix // masked; not valid in an IPv4-only lease
	PublicIP    netip.Addr   // underlay address of the IPv4 VTEP; not valid without one
	PublicIPv6  netip.Addr   // underlay address of the IPv6 VTEP; not valid without one
	BackendType string       // as the network has it; "" in one of alloc, and in a reservation
	Backend     VTEPData     // of the IPv4 VTEP
	BackendV6   VTEPData     // of the IPv6 VTEP

	// Facts is what the node says of itself, which is not in the entry's value.
	Facts NodeFacts

	// Claimant is a part of Key. In a store that can have several leases of the same subnets it is, in all but one of them, the
	// name of the node.
	Claimant string

	// CreateRevision orders leases by age: of two that conflict the lower one holds.
	CreateRevision int64
	// ModRevision changes with every write of the entry. Store use only.
	ModRevision int64
	// Handle is the store's own name for the right to the entry (the etcd lease id). Store use only.
	Handle int64
	// Reserved: the entry never expires. A store whose leases all are without an end leaves it false.
	Reserved bool
	// Expires is when the lease ends unless it is renewed, on this process's
	// monotonic clock; zero: never. It is set by Acquire and Renew only, and zero elsewhere.
	Expires time.Time
}

// Reservation returns l without what the node publishes while it lives: a reservation of
// the subnets for the node with these public IPs, which nobody sends to yet.
func (l Lease) Reservation() Lease {
	return Lease{Subnet: l.Subnet, IPv6Subnet: l.IPv6Subnet, PublicIP: l.PublicIP, PublicIPv6: l.PublicIPv6, Reserved: true}
}

// isReservation reports whether l is what Reservation returns: nobody sends to it, and that is right.
func (l *Lease) isReservation() bool { return l.Reserved && l.BackendType == "" }

// CIDRs returns the subnets for a log line, such as "10.42.17.0/24" or "10.6.10.0/24,fd10:6::/64".
func (l Lease) CIDRs() string {
	switch {
	case !l.IPv6Subnet.IsValid():
		return l.Subnet.String()
	case !l.Subnet.IsValid():
		return l.IPv6Subnet.String()
	}
	return l.Subnet.String() + "," + l.IPv6Subnet.String()
}

// anySubnet returns the IPv4 subnet, or else the IPv6 one.
func (l *Lease) anySubnet() netip.Prefix {
	if l.Subnet.IsValid() {
		return l.Subnet
	}
	return l.IPv6Subnet
}

// SamePeer compares all that a peer is made of; a renewal changes none of it.
func (l Lease) SamePeer(m Lease) bool {
	l.ModRevision, l.Handle, l.Reserved, l.Expires = m.ModRevision, m.Handle, m.Reserved, m.Expires
	return l == m
}

// VTEPData is the BackendData of a vxlan lease.
type VTEPData struct {
	VNI uint32
	MAC encap.MAC
}
