package control

import "net/netip"

// The reasons for which the underlay refuses a lease.
const (
	reasonHoldsUnderlay = "subnet_holds_underlay"
	reasonInOverlay     = "public_ip_in_overlay"
)

// checkUnderlay refuses a subnet whose route would take an address of the underlay away, and a
// public IP that is behind this node's own subnet. Both together would send the tunnel into itself.
func (a *admission) checkUnderlay(c claim) error {
	if need, ok := a.underlay.blocks(c.subnet); ok {
		return refuse(reasonHoldsUnderlay, "subnet %s holds %s", c.subnet, need)
	}
	if link, ok := a.underlay.covered(c.subnet); ok {
		return refuse(reasonHoldsUnderlay, "subnet %s covers %s", c.subnet, link)
	}
	ip := c.vtep.Addr
	if !a.inNetwork(ip) {
		return nil
	}
	if a.covers(c.subnet, ip) {
		return refuse(reasonHoldsUnderlay, "subnet %s holds PublicIP %s of the same lease", c.subnet, ip)
	}
	if own := a.ownSubnet(single(ip)); a.covers(own, ip) {
		return refuse(reasonInOverlay, "PublicIP %s is inside this node's own subnet %s", ip, own)
	}
	return nil
}

// admitUnderlay judges two leases if the subnet of one holds the public IP of the other. It refuses the
// newer one: that cannot work beside the older one, which must not lose anything by it.
func (a *admission) admitUnderlay(c *claim) error {
	for p, key := range a.publics.Subnets(c.subnet) {
		if a.covers(c.subnet, p.Addr()) {
			return refuse(reasonHoldsUnderlay, "subnet %s holds PublicIP %s of the older lease %s", c.subnet, p.Addr(), CIDRsOf(key))
		}
	}
	ip := c.vtep.Addr
	if !a.inNetwork(ip) {
		return nil
	}
	for s, older := range a.subnets.Supernets(single(ip)) {
		if a.covers(s, ip) {
			return refuse(reasonInOverlay, "PublicIP %s is inside subnet %s of the older lease %s", ip, s, CIDRsOf(older.rec.key))
		}
	}
	a.publics.Insert(single(ip), c.rec.key)
	return nil
}

// inNetwork reports whether an underlay address is an address of the overlay network too.
func (a *admission) inNetwork(ip netip.Addr) bool {
	for _, p := range a.prefixes {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

// covers reports whether packets to ip would follow a route to the subnet s.
func (a *admission) covers(s netip.Prefix, ip netip.Addr) bool {
	return s.IsValid() && s.Contains(ip) && !a.underlay.keeps(ip, s)
}
