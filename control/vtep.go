package control

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/overlayd/overlayd/dataplane"
)

// VTEP returns the VTEP that the lease publishes in one family. Without one its Addr is not valid. One of
// host-gw is an address alone.
func (l *Lease) VTEP(ipv6 bool) dataplane.VTEP {
	addr, data := l.PublicIP, l.Backend
	if ipv6 {
		addr, data = l.PublicIPv6, l.BackendV6
	}
	if !addr.IsValid() || addr.Is6() != ipv6 || data == (VTEPData{}) && l.BackendType != BackendHostGW {
		return dataplane.VTEP{}
	}
	return dataplane.VTEP{Addr: addr, MAC: data.MAC, VNI: data.VNI}
}

// setVTEP makes v the VTEP of its family, published as public.
func (l *Lease) setVTEP(v dataplane.VTEP, public netip.Addr) {
	data := VTEPData{VNI: v.VNI, MAC: v.MAC}
	if v.Addr.Is6() {
		l.PublicIPv6, l.BackendV6 = public, data
	} else {
		l.PublicIP, l.Backend = public, data
	}
}

// route returns the VTEP of l to which self sends packets for a subnet of one family: the VTEP of that
// family if both leases have one, else the VTEP of the other family if both have that. So a normal
// dual-stack cluster does what flannel does, and an overlay of one family runs over an
// underlay of the other, too. In host-gw, where the VTEP is the next hop, it is of that family.
// ok is false if the two have no family in common.
func (l *Lease) route(self *Lease, ipv6 bool) (v dataplane.VTEP, ok bool) {
	for _, family := range [...]bool{ipv6, !ipv6} {
		if v := l.VTEP(family); v.Addr.IsValid() && self.VTEP(family).Addr.IsValid() {
			return v, family == ipv6 || l.BackendType != BackendHostGW
		}
	}
	return dataplane.VTEP{}, false
}

// Publish returns the lease that node publishes in network n, all but its subnets. It has for
// each enabled family the VTEP of that family, or else that of the other. Other vteps are left out, and
// a MAC that is derived from a former address is replaced. An error means that there is no VTEP, or no
// public IP of node for it; ErrNetworkChanged that node wants no lease in n.
func (n Network) Publish(node Node, vteps []dataplane.VTEP) (Lease, error) {
	if node.Network != (Network{}) && node.Network != n {
		return Lease{}, fmt.Errorf("%w: it was %+v, now it is %+v", ErrNetworkChanged, node.Network, n)
	}
	if !n.Backend.IsVXLAN() {
		return n.publishAddrs(node)
	}
	all, l := Lease{}, Lease{BackendType: BackendVXLAN, Facts: node.Facts()}
	for _, v := range vteps {
		public := node.PublicIP
		if v.Addr.Is6() {
			public = node.PublicIPv6
		}
		all.setVTEP(v, public)
	}
	for _, p := range n.Prefixes() {
		v, ok := all.route(&all, p.Addr().Is6())
		if !ok {
			return Lease{}, fmt.Errorf("network %s: %w", p, errNoVTEP)
		}
		l.setVTEP(v, v.Addr)
	}
	return node.KeepMACs(l, Lease{}), nil
}

// publishAddrs is Publish for the backends without VTEPs. As with flannel host-gw publishes the public
// IP of each family, and alloc the one of IPv4, or another one if that is missing.
func (n Network) publishAddrs(node Node) (Lease, error) {
	l := Lease{BackendType: n.Backend.leaseType(), Facts: node.Facts()}
	if n.EnableIPv4 {
		l.PublicIP = node.PublicIP
	}
	if n.EnableIPv6 && (n.Backend.Type == BackendHostGW || !l.PublicIP.IsValid()) {
		l.PublicIPv6 = node.PublicIPv6
	}
	for _, p := range n.Prefixes() {
		if _, ok := l.route(&l, p.Addr().Is6()); !ok && (n.Backend.Type == BackendHostGW || !l.Identity().IsValid()) {
			return Lease{}, fmt.Errorf("network %s: %w: backend %s needs one of each family of the network", p, errNoAddress, n.Backend.Type)
		}
	}
	return l, nil
}

var (
	errNoVTEP    = errors.New("this node has no VTEP with a public IP")
	errNoAddress = errors.New("this node has no address of the network's family to publish")
)

// Identity returns the one of the public IPs that tells the lease's node from all others.
func (l Lease) Identity() netip.Addr {
	if l.PublicIP.IsValid() {
		return l.PublicIP
	}
	return l.PublicIPv6
}

// SamePublicIP reports whether two leases are of one node by their public IPs. IPv4 decides
// if both have it: all leases without it have the same IPv4 address, none.
func (l Lease) SamePublicIP(m Lease) bool {
	if l.PublicIP.IsValid() && m.PublicIP.IsValid() {
		return l.PublicIP == m.PublicIP
	}
	return l.PublicIPv6.IsValid() && l.PublicIPv6 == m.PublicIPv6
}
