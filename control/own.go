package control

import (
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/dataplane"
)

// Ownership says whether a lease in the store is a node's own, to be published again.
type Ownership int

// The judgements.
const (
	NotOwn        Ownership = iota
	OwnUnlessLive           // if no other live node publishes the lease's public IP
	Own
)

// Ownership judges a lease that the store has; vteps is what the node is about to
// publish. The node's own is, first, a lease with its public IP (Lease.SamePublicIP).
//
// A node whose public IP has changed has its last lease still: the one of its previous
// subnets, if they fit the network. The store may know that the node wrote it: wrote. Else
// it is the node's if it has the MAC that its device has kept. A MAC that
// overlayd has derived from the earlier address changes with it, so that one proves
// only that some overlayd wrote the lease; whoever else did gives a sign of life under
// that address. Any other MAC is somebody else's, a flanneld's for one.
func (n Node) Ownership(network Network, vteps []dataplane.VTEP, l Lease, wrote bool) Ownership {
	switch {
	case l.SamePublicIP(Lease{PublicIP: n.PublicIP, PublicIPv6: n.PublicIPv6}):
		return Own
	case !Compatible(network, l.Subnet, l.IPv6Subnet) || !n.had(l.Subnet) || !n.had(l.IPv6Subnet):
		return NotOwn
	case wrote || slices.ContainsFunc(vteps, l.hasMAC):
		return Own
	case l.isDerived():
		return OwnUnlessLive
	}
	return NotOwn
}

// had reports whether p is of the last run; of a family without a subnet it is.
func (n Node) had(p netip.Prefix) bool { return !p.IsValid() || slices.Contains(n.Previous, p) }

// hasMAC reports whether the lease has v's MAC in v's family.
func (l Lease) hasMAC(v dataplane.VTEP) bool {
	mac := l.vtep(v.Addr.Is6()).MAC
	return mac.IsUnicast() && mac == v.MAC
}

// isDerived reports whether every VTEP of the lease has a MAC that overlayd derives.
func (l Lease) isDerived() bool {
	derived := false
	for _, v := range [...]dataplane.VTEP{l.vtep(false), l.vtep(true)} {
		if !v.Addr.IsValid() {
			continue
		}
		if !dataplane.IsDerived(v.MAC, v.Addr, v.VNI) {
			return false
		}
		derived = true
	}
	return derived
}
