package control

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// claim is what one family of one lease asks for.
type claim struct {
	rec     *ribLease
	subnet  netip.Prefix
	vtep    dataplane.VTEP
	source  netip.Addr // outer source of its packets, if it is not vtep.Addr
	created int64      // the lease's CreateRevision, here so that sorting the claims fetches no lease
	kept    bool       // the lease is kept: see RIB.keep
	late    bool       // it is judged after the others, though its lease may be older: see noteIncumbents
}

// vtepMAC is the MAC of one underlay family's device.
type vtepMAC struct {
	mac  encap.MAC
	ipv6 bool
}

// admission decides which claims hold. Others write the store: nothing in it may cost another
// lease anything, nor this node its own subnet or its underlay.
type admission struct {
	network  Network
	prefixes []netip.Prefix // of network
	underlay *Underlay
	lengths  *Lengths
	self     Lease
	ownKey   string
	owned    map[string]bool           // keys of the leases that the node has had
	publics  bart.Table[string]        // admitted public IPs inside the network, with the key of their lease
	subnets  bart.Table[*claim]        // admitted subnets
	sources  map[netip.Addr]netip.Addr // of the packets of peers that were used: their addresses
	macs     map[vtepMAC]*claim        // who has each MAC
	rivals   []Rival                   // have a MAC of self
	shared   bool                      // MACs may be alike
	rejected []Rejection               // the oldest of those that are refused, up to twice maxRejected
	refused  int                       // all of them
	lasting  []*ribLease               // those of which a family is refused for as long as nothing changes that this depends on
	call     uint32                    // RIB.calls
}

func newAdmission(r *RIB, self Lease) *admission {
	return &admission{network: r.network, prefixes: r.network.Prefixes(), underlay: &r.Underlay, lengths: r.Lengths, self: self, ownKey: self.Key(), owned: r.owned, call: r.calls}
}

func (a *admission) reject(rec *ribLease, subnet netip.Prefix, err error) {
	a.refused++
	rec.refusals++
	a.rejected = append(a.rejected, Rejection{Key: rec.key, Subnet: subnet, Node: rec.Identity(), Name: rec.Facts.Name, Err: err, rec: rec})
	if len(a.rejected) == 2*maxRejected {
		a.rejected = oldestRejected(a.rejected)
	}
}

// refusal is the error of a Rejection. Its text is made when somebody reads it: most of many never are.
type refusal struct {
	reason, format string
	args           []any
}

// isContest reports whether the lease is one of ReasonContested: it is told however many others are refused.
func (r *Rejection) isContest() bool {
	why, ok := r.Err.(*refusal)
	return ok && why.reason == ReasonContested
}

// Error implements error.
func (r *refusal) Error() string { return fmt.Sprintf(r.format, r.args...) }

// refuse makes the error of a Rejection; reason is its stable id. The args are values, which do not change.
func refuse(reason, format string, args ...any) error { return &refusal{reason, format, args} }

// isOwn reports whether rec stands in the place of the node's own lease. If somebody
// else wrote it, that is for whoever renews the lease to find out.
func (a *admission) isOwn(rec *ribLease) bool { return rec.key == a.ownKey }

// isOwnEarlier reports whether rec is of a lease of this node that was revoked or given up. The store may show it a little longer,
// and it may be kept when the store has lost it. It is nobody's who could be refused.
func (a *admission) isOwnEarlier(rec *ribLease) bool {
	return (rec.kept || a.owned[rec.key]) && rec.SamePublicIP(a.self)
}

// appendClaims adds the families of a lease that are good in themselves.
func (a *admission) appendClaims(claims []claim, rec *ribLease) []claim {
	rec.refusals, rec.open, rec.behind = 0, 0, [2]*ribLease{}
	if a.isPossible(rec) {
		for _, p := range [...]netip.Prefix{rec.Subnet, rec.IPv6Subnet} {
			c := claim{rec: rec, subnet: p, created: rec.CreateRevision, kept: rec.kept}
			switch {
			case !p.IsValid():
			case a.isComing(c):
				rec.open++
			case a.isGood(&c):
				rec.open++
				claims = append(claims, c)
			}
		}
	}
	a.noteLasting(rec)
	return claims
}

// noteLasting notes that nothing is open of what a lease asks for. One that is kept is judged again each time.
func (a *admission) noteLasting(rec *ribLease) {
	if rec.open == 0 && !rec.kept {
		a.lasting = append(a.lasting, rec)
	}
}

// isPossible reports whether a lease asks for anything that this network can give.
func (a *admission) isPossible(rec *ribLease) bool {
	if rec.isReservation() {
		return false
	}
	if want := a.network.Backend.leaseType(); rec.BackendType != want {
		a.reject(rec, rec.anySubnet(), refuse(ReasonBackendType, "BackendType %.40q is not %q", rec.BackendType, want))
		return false
	}
	return a.network.Backend.Type != BackendAlloc // where nothing leads to it
}

// isGood completes a claim, and reports whether it is good in itself.
func (a *admission) isGood(c *claim) bool {
	vtep, ok := c.rec.route(&a.self, c.subnet.Addr().Is6())
	if !ok {
		a.reject(c.rec, c.subnet, refuse(ReasonNoCommonFamily, "subnet %s: no public IP with backend data in a family in which this node has them too", c.subnet))
		return false
	}
	c.vtep = vtep
	if err := a.check(*c); err != nil {
		a.reject(c.rec, c.subnet, err)
		return false
	}
	return true
}

// isComing reports whether c is of the lease that this node, which has none, is about
// to get: a watch may show the entry before Acquire has returned. That is not a fault.
func (a *admission) isComing(c claim) bool {
	if a.self.Subnet.IsValid() || a.self.IPv6Subnet.IsValid() {
		return false
	}
	vtep, ok := c.rec.route(&a.self, c.subnet.Addr().Is6())
	return ok && a.self.VTEP(vtep.Addr.Is6()) == vtep
}

// check judges one claim without regard to other leases.
func (a *admission) check(c claim) error {
	own, ownSubnet := a.self.VTEP(c.vtep.Addr.Is6()), a.ownSubnet(c.subnet)
	overlaps, older := ownSubnet.IsValid() && ownSubnet.Overlaps(c.subnet), c.created <= a.self.CreateRevision && !c.kept
	r, on := a.network.family(c.subnet)
	switch {
	case !on:
		return refuse(ReasonFamily, "subnet %s: the network has no such family", c.subnet)
	case !r.contains(c.subnet):
		return refuse(ReasonOutside, "subnet %s is not inside the network %s", c.subnet, r.network)
	case overlaps && !older:
		return refuse("overlaps_own", "subnet %s overlaps this node's own %s", c.subnet, ownSubnet)
	case c.vtep.Addr == own.Addr:
		return refuse("own_public_ip", "PublicIP %s is this node's own", c.vtep.Addr)
	case !a.network.Backend.IsVXLAN(): // it has neither
	case c.vtep.VNI != a.network.Backend.VNI:
		return refuse(ReasonVNI, "VNI %d is not the network's %d", c.vtep.VNI, a.network.Backend.VNI)
	case !c.vtep.MAC.IsUnicast():
		return refuse("mac_not_unicast", "VtepMAC %s is not unicast", c.vtep.MAC)
	}
	if err := a.checkPublicIP(c.vtep.Addr); err != nil {
		return err
	}
	if err := a.checkUnderlay(c); err != nil {
		return err
	}
	if !r.hasLength(c.subnet, a.lengths) {
		return refuse("subnet_length", "subnet %s is not of length %d, which the network config has, nor of one that it is known to have had", c.subnet, r.length)
	}
	if overlaps {
		return refuse(ReasonContested, "subnet %s overlaps this node's own %s, and its lease is older: other nodes send the packets there", c.subnet, ownSubnet)
	}
	if c.vtep.MAC != own.MAC || !a.network.Backend.IsVXLAN() {
		return nil
	}
	if !c.rec.kept {
		a.rivals = append(a.rivals, Rival{VTEP: c.vtep, Subnet: c.subnet, rec: c.rec})
	}
	if a.shared {
		return nil
	}
	return refuse(ReasonOwnMAC, "VtepMAC %s of PublicIP %s is this node's own", c.vtep.MAC, c.vtep.Addr)
}

// ownSubnet returns the node's subnet of p's family, if it has one.
func (a *admission) ownSubnet(p netip.Prefix) netip.Prefix {
	if p.Addr().Is6() {
		return a.self.IPv6Subnet
	}
	return a.self.Subnet
}

// checkPublicIP refuses addresses that no packet may be sent to: those that are not of one other host.
func (a *admission) checkPublicIP(ip netip.Addr) error {
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
	case ip.Is4() && ip.As4()[0] >= 240: // RFC 1112 section 4
		kind = "reserved"
	case ip.Zone() != "" || ip.Is4In6():
		kind = "zoned or IPv4-mapped"
	case a.underlay.isOwn(ip):
		kind = "an address of this host"
	case !a.underlay.isPublic(ip):
		return refuse("public_ip_not_allowed", "PublicIP %s is outside of what peers may have here: %s", ip, a.underlay.Public)
	}
	if p, ok := a.underlay.broadcasts(ip); ok {
		kind = "the first or last address of " + p.String()
	}
	if kind != "" {
		return refuse("public_ip_unusable", "PublicIP %s is %s", ip, kind)
	}
	return nil
}

// admit judges a claim against those admitted before it, and remembers it.
func (a *admission) admit(c *claim) error {
	if older := a.overlapped(c.subnet); older != nil {
		if older.outranks(c) {
			c.rec.behind[familyIndex(c.subnet.Addr())] = older.rec
			c.rec.open--
			a.noteLasting(c.rec)
		}
		return refuse("overlaps_older", "subnet %s overlaps %s of the older lease %s", c.subnet, older.subnet, CIDRsOf(older.rec.key))
	}
	if owner, ok := a.sources[c.vtep.Addr]; ok && owner != c.vtep.Addr {
		return refuse("public_ip_in_use", "PublicIP %s is the source of the packets of %s", c.vtep.Addr, owner)
	}
	if err := a.admitUnderlay(c); err != nil {
		return err
	}
	a.subnets.Insert(c.subnet, c)
	if !c.kept && !c.late {
		c.rec.holds[familyIndex(c.subnet.Addr())] = a.call
	}
	return nil
}

// outranks reports whether c goes before a younger claim whatever becomes of that one.
func (c *claim) outranks(younger *claim) bool {
	return !c.kept && !c.late && cmp.Or(cmp.Compare(c.created, younger.created), cmp.Compare(c.rec.key, younger.rec.key)) < 0
}

// overlapped returns an admitted claim whose subnet overlaps p, or nil if no such claim exists.
func (a *admission) overlapped(p netip.Prefix) *claim {
	if !a.subnets.OverlapsPrefix(p) {
		return nil
	}
	for _, c := range a.subnets.Supernets(p) {
		return c
	}
	for _, c := range a.subnets.Subnets(p) {
		return c
	}
	return nil
}

// admitMACs gives each MAC to one of the VTEPs that have it. admitted has the numbers of the admitted claims,
// oldest first; it returns those that are left. last is what the last call of RIB.Peers returned.
func (a *admission) admitMACs(claims []claim, admitted []int32, last []dataplane.Peer) []int32 {
	a.macs = make(map[vtepMAC]*claim, len(admitted))
	for _, i := range admitted {
		c := &claims[i]
		s := vtepMAC{c.vtep.MAC, c.vtep.Addr.Is6()}
		if has, ok := a.macs[s]; !ok || has.vtep.Addr != c.vtep.Addr && c.takesMAC(has, last) {
			a.macs[s] = c
		}
	}
	left := admitted[:0]
	for _, i := range admitted {
		c := &claims[i]
		has := a.macs[vtepMAC{c.vtep.MAC, c.vtep.Addr.Is6()}]
		if has.vtep.Addr != c.vtep.Addr {
			a.reject(c.rec, c.subnet, refuse("mac_in_use", "VtepMAC %s with PublicIP %s belongs to lease %s with PublicIP %s",
				c.vtep.MAC, c.vtep.Addr, has.rec.CIDRs(), has.vtep.Addr))
			continue
		}
		left = append(left, i)
	}
	return left
}

// takesMAC reports whether c takes its MAC from an older claim. A lease in the store goes before one that is
// kept; then a MAC that is derived from its own address before another; then the VTEP that had the MAC last.
func (c *claim) takesMAC(older *claim, last []dataplane.Peer) bool {
	for _, judge := range [...]func(*claim) bool{
		func(c *claim) bool { return !c.rec.kept },
		func(c *claim) bool { return isDerivedFromOwn(c.vtep) },
		func(c *claim) bool { return hasVTEP(last, c.vtep) },
	} {
		if mine, theirs := judge(c), judge(older); mine != theirs {
			return mine
		}
	}
	return false
}

// hasVTEP looks for v in what RIB.Peers has returned.
func hasVTEP(peers []dataplane.Peer, v dataplane.VTEP) bool {
	_, found := peerOf(peers, v)
	return found
}

// peerOf returns the peer of v of those that RIB.Peers has returned.
func peerOf(peers []dataplane.Peer, v dataplane.VTEP) (p dataplane.Peer, found bool) {
	i, found := slices.BinarySearchFunc(peers, v, func(p dataplane.Peer, v dataplane.VTEP) int { return comparePeers(&p, v) })
	if found {
		p = peers[i]
	}
	return p, found
}

// comparePeers is the order of what RIB.Peers returns.
func comparePeers(p *dataplane.Peer, v dataplane.VTEP) int {
	return cmp.Or(p.Addr.Compare(v.Addr), slices.Compare(p.MAC[:], v.MAC[:]))
}
