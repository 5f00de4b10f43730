package control

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/gaissmai/bart"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// claim is what one family of one lease asks for.
type claim struct {
	rec    *record
	subnet netip.Prefix
	vtep   dataplane.VTEP
}

// station is a VTEP MAC of one family's device.
type station struct {
	mac  encap.MAC
	ipv6 bool
}

// admission decides which claims hold. The store is written by others, so that
// nothing in it may cost another lease, this node's own subnet or its underlay.
type admission struct {
	network  Network
	self     Lease
	ownKey   string
	subnets  bart.Table[string] // admitted subnets, with the key of their lease
	stations map[station]*claim // the oldest claim of each MAC
	rejected []Rejection
}

func newAdmission(n Network, self Lease) *admission {
	return &admission{network: n, self: self, ownKey: self.Key()}
}

func (a *admission) reject(rec *record, err error) {
	a.rejected = append(a.rejected, Rejection{Key: rec.key, Err: err})
}

// isOwn reports whether rec stands in the place of the node's own lease. If somebody
// else wrote it, that is for whoever renews the lease to find out.
func (a *admission) isOwn(rec *record) bool { return rec.key == a.ownKey }

// appendClaims adds the families of a lease that are good in themselves.
func (a *admission) appendClaims(claims []claim, rec *record) []claim {
	if rec.BackendType != backendVXLAN {
		a.reject(rec, fmt.Errorf("BackendType %.40q is not \"vxlan\"", rec.BackendType))
		return claims
	}
	families := []claim{
		{rec, rec.Subnet, dataplane.VTEP{Addr: rec.PublicIP, MAC: rec.Backend.MAC, VNI: rec.Backend.VNI}},
		{rec, rec.IPv6Subnet, dataplane.VTEP{Addr: rec.PublicIPv6, MAC: rec.BackendV6.MAC, VNI: rec.BackendV6.VNI}},
	}
	for _, c := range families {
		if !c.subnet.IsValid() || a.isComing(c) {
			continue
		}
		if err := a.check(c); err != nil {
			a.reject(rec, err)
			continue
		}
		claims = append(claims, c)
	}
	return claims
}

// own returns the node's VTEP of p's family and its subnet, if it has one.
func (a *admission) own(p netip.Prefix) (dataplane.VTEP, netip.Prefix) {
	s := a.self
	if p.Addr().Is6() {
		return dataplane.VTEP{Addr: s.PublicIPv6, MAC: s.BackendV6.MAC, VNI: s.BackendV6.VNI}, s.IPv6Subnet
	}
	return dataplane.VTEP{Addr: s.PublicIP, MAC: s.Backend.MAC, VNI: s.Backend.VNI}, s.Subnet
}

// isComing reports whether c is of the lease that this node, which has none, is about
// to get: a watch may show the entry before Acquire has returned. That is no fault.
func (a *admission) isComing(c claim) bool {
	if a.self.Subnet.IsValid() || a.self.IPv6Subnet.IsValid() {
		return false
	}
	own, _ := a.own(c.subnet)
	return own.Addr.IsValid() && own == c.vtep
}

// check judges one claim without regard to other leases.
func (a *admission) check(c claim) error {
	own, ownSubnet := a.own(c.subnet)
	r, on := a.network.family(c.subnet)
	switch {
	case !on:
		return fmt.Errorf("subnet %s: the network has no such family", c.subnet)
	case !r.contains(c.subnet):
		return fmt.Errorf("subnet %s is not inside the network %s", c.subnet, r.network)
	case ownSubnet.IsValid() && ownSubnet.Overlaps(c.subnet):
		return fmt.Errorf("subnet %s overlaps this node's own %s", c.subnet, ownSubnet)
	case c.vtep.VNI != a.network.Backend.VNI:
		return fmt.Errorf("VNI %d is not the network's %d", c.vtep.VNI, a.network.Backend.VNI)
	case own.Addr.IsValid() && c.vtep.Addr == own.Addr:
		return fmt.Errorf("PublicIP %s is this node's own", c.vtep.Addr)
	case !c.vtep.MAC.IsUnicast():
		return fmt.Errorf("VtepMAC %s is not unicast", c.vtep.MAC)
	case c.vtep.MAC == own.MAC:
		return fmt.Errorf("VtepMAC %s is this node's own", c.vtep.MAC)
	}
	return a.checkPublicIP(c.vtep.Addr, c.subnet)
}

// checkPublicIP refuses what no packet may be sent to: addresses of no single
// other host, and overlay addresses, which would send the tunnel into itself.
func (a *admission) checkPublicIP(ip netip.Addr, subnet netip.Prefix) error {
	if !ip.IsValid() || ip.BitLen() != subnet.Addr().BitLen() {
		return fmt.Errorf("subnet %s has no public IP of its family", subnet)
	}
	kind := ""
	switch {
	case ip.IsUnspecified() || (ip.Is4() && ip.As4()[0] == 0): // RFC 1122 section 3.2.1.3 (a), (b)
		kind = "unspecified"
	case ip.IsLoopback():
		kind = "loopback"
	case ip.IsMulticast():
		kind = "multicast"
	case ip.IsLinkLocalUnicast():
		kind = "link-local"
	case ip.Is4() && ip.As4() == [4]byte{255, 255, 255, 255}:
		kind = "broadcast"
	case ip.Zone() != "" || ip.Is4In6():
		kind = "zoned or IPv4-mapped"
	}
	if kind != "" {
		return fmt.Errorf("PublicIP %s is %s", ip, kind)
	}
	for _, p := range a.network.Prefixes() {
		if p.Contains(ip) {
			return fmt.Errorf("PublicIP %s is inside the overlay network %s", ip, p)
		}
	}
	return nil
}

// admit judges a claim against those admitted before it, and remembers it.
func (a *admission) admit(c *claim) error {
	s := station{c.vtep.MAC, c.vtep.Addr.Is6()}
	if older, ok := a.stations[s]; ok && older.vtep.Addr != c.vtep.Addr {
		return fmt.Errorf("VtepMAC %s with PublicIP %s belongs to the older lease %s with PublicIP %s",
			c.vtep.MAC, c.vtep.Addr, older.rec.key, older.vtep.Addr)
	}
	if a.subnets.OverlapsPrefix(c.subnet) {
		return a.errOverlap(c.subnet)
	}
	a.subnets.Insert(c.subnet, c.rec.key)
	a.stations[s] = c
	return nil
}

// errOverlap names the older lease that p overlaps.
func (a *admission) errOverlap(p netip.Prefix) error {
	for q, key := range a.subnets.Supernets(p) {
		return fmt.Errorf("subnet %s overlaps %s of the older lease %s", p, q, key)
	}
	for q, key := range a.subnets.Subnets(p) {
		return fmt.Errorf("subnet %s overlaps %s of the older lease %s", p, q, key)
	}
	return errors.New("subnet " + p.String() + " overlaps an older lease")
}
