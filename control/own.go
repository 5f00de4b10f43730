package control

import (
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/dataplane"
)

// Ownership says whether a lease in the store is a node's own, to be published anew.
type Ownership int

const (
	NotOwn        Ownership = iota
	OwnUnlessLive           // if no other live node publishes the lease's public IP
	Own
)

// Ownership judges a lease that the store has; vteps is what the node is about to
// publish. The node's own is, first, a lease with its public IP. IPv6 decides only
// where it has no IPv4: all IPv6-only leases have the same IPv4 address, none.
//
// A node whose public IP has changed has its last lease still: the one of its previous
// subnets, if they fit the network, with the MAC that its device has kept. A MAC that
// overlayd has derived from the earlier address changes with it, so that one proves
// only that some overlayd wrote the lease; whoever else did gives a sign of life under
// that address. Any other MAC is somebody else's, a flanneld's for one.
func (n Node) Ownership(network Network, vteps []dataplane.VTEP, l Lease) Ownership {
	switch {
	case n.publishes(l):
		return Own
	case !Compatible(network, l.Subnet, l.IPv6Subnet) || !n.had(l.Subnet) || !n.had(l.IPv6Subnet):
		return NotOwn
	case slices.ContainsFunc(vteps, l.hasMAC):
		return Own
	case isDerived(l.Subnet, l.PublicIP, l.Backend) && isDerived(l.IPv6Subnet, l.PublicIPv6, l.BackendV6):
		return OwnUnlessLive
	}
	return NotOwn
}

func (n Node) publishes(l Lease) bool {
	if n.PublicIP.IsValid() {
		return l.PublicIP == n.PublicIP
	}
	return n.PublicIPv6.IsValid() && !l.PublicIP.IsValid() && l.PublicIPv6 == n.PublicIPv6
}

// had reports whether p is of the last run; of a family without a subnet it is.
func (n Node) had(p netip.Prefix) bool { return !p.IsValid() || slices.Contains(n.Previous, p) }

// hasMAC reports whether the lease has v's MAC in v's family.
func (l Lease) hasMAC(v dataplane.VTEP) bool {
	subnet, mac := l.Subnet, l.Backend.MAC
	if v.Addr.Is6() {
		subnet, mac = l.IPv6Subnet, l.BackendV6.MAC
	}
	return subnet.IsValid() && mac.IsUnicast() && mac == v.MAC
}

// isDerived reports whether one family of a lease has the MAC that overlayd derives.
// A family without a subnet does not say otherwise.
func isDerived(subnet netip.Prefix, ip netip.Addr, d VTEPData) bool {
	return !subnet.IsValid() || ip.IsValid() && d.MAC == dataplane.MAC(ip, d.VNI)
}
