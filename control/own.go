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
// A node whose public IP has changed still has its last lease: the one of its previous
// subnets, if they fit the network. The store may know that the node wrote it: wrote. Else
// it is the node's if it has the MAC that its device has kept. A MAC that
// overlayd has derived from an address that the node has had changes with the address, so that one
// proves only that some overlayd wrote the lease; if another node did, it gives a sign of life under
// that address. Under any other address it is the lease of whoever has got the subnet since. That no sign of
// life is there says nothing then: the daemon may be restarting. Any other MAC is somebody else's, such as a flanneld's.
func (n Node) Ownership(network Network, vteps []dataplane.VTEP, l Lease, wrote bool) Ownership {
	switch {
	case l.SamePublicIP(Lease{PublicIP: n.PublicIP, PublicIPv6: n.PublicIPv6}):
		return Own
	case !Compatible(network, l.Subnet, l.IPv6Subnet) || !n.HadSubnets(l):
		return NotOwn
	case wrote || slices.ContainsFunc(vteps, l.hasMAC):
		return Own
	case l.IsDerived() && slices.Contains(n.Former, l.Identity()):
		return OwnUnlessLive
	}
	return NotOwn
}

// HadSubnets reports whether the subnets of l are of the last run.
func (n Node) HadSubnets(l Lease) bool { return n.had(l.Subnet) && n.had(l.IPv6Subnet) }

// had reports whether p is of the last run. It is true for a family without a subnet.
func (n Node) had(p netip.Prefix) bool { return !p.IsValid() || slices.Contains(n.Previous, p) }

// hasMAC reports whether the lease has v's MAC in v's family.
func (l Lease) hasMAC(v dataplane.VTEP) bool {
	mac := l.VTEP(v.Addr.Is6()).MAC
	return mac.IsUnicast() && mac == v.MAC
}

// IsDerived reports whether every VTEP of the lease has a MAC that overlayd derives.
func (l Lease) IsDerived() bool {
	derived := false
	for _, v := range [...]dataplane.VTEP{l.VTEP(false), l.VTEP(true)} {
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
