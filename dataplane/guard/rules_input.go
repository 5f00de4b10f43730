package guard

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

// input judges what is for this host. Of a superpacket, which the kernel splits later, it sees only the first datagram.
func (b builder) input() chain {
	c := chain{name: chainInput, hook: base(unix.NF_INET_LOCAL_IN, first)}
	c.goTo(chainPlain, isUDP(true))
	c.goTo(chainPlain, toPort(b.Port, true))
	c.jumpTo(chainOther, b.byUnderlay(true))
	switch { // another network's has a guard of its own, or wants none
	case b.kernel:
		c.goTo(chainStray, vniIs(b.VNI, true))
	case !b.Alone:
		c.add(accept, vniIs(b.VNI, true))
	}
	if !b.kernel {
		b.known(&c)
		return c
	}
	for _, outer := range b.families() {
		b.pairs(&c, outer)
	}
	c.goTo(chainReason)
	return c
}

// known admits datagrams of VTEPs to the sockets of this process, which judges what is in them. Of all others it gets a few,
// so that it can log and count them under their own reasons.
func (b builder) known(c *chain) {
	const samples = 50
	for _, f := range b.families() {
		c.add(accept, of(f), plainFlags(), vniIs(b.VNI, false), b.isPeer(f, outerSource(f), false))
		for _, p := range b.anyPeerFrom(f) {
			c.add(accept, of(f), plainFlags(), vniIs(b.VNI, false), outerSource(f).within(p, false))
		}
	}
	c.add(accept, limited(samples))
	c.drop(dataplane.DropFlood)
}

// pairs admits what known VTEPs send from their own subnets and addresses to a subnet of this host. The mark tells what
// was in a superpacket behind a datagram of another network.
func (b builder) pairs(c *chain, outer family) {
	for _, inner := range []family{ipv4, ipv6} {
		for _, own := range ofFamily(b.own, inner) {
			to := []cond{of(outer), innerIs(inner), innerDestination(inner).within(own, false)}
			admit := func(more ...cond) { c.add(accept, append(slices.Concat(to, more), setMark(b.Mark))...) }
			for _, bits := range b.lengths(func(bits int) string { return pairSet(outer, inner, bits) }, bitsOf(inner)) {
				admit(in(pairSet(outer, inner, bits), false, bits, outerSource(outer), innerSource(inner)))
			}
			if b.Check == dataplane.SourceOverlay {
				known := b.isPeer(outer, outerSource(outer), false)
				b.strangers(inner, innerSource(inner), func(outside ...cond) { admit(append([]cond{known}, outside...)...) })
			}
			for _, from := range b.anyPeerFrom(outer) {
				for _, set := range []func(family, int) string{leaseSet, wideSet} {
					for _, bits := range b.lengths(func(bits int) string { return set(inner, bits) }, bitsOf(inner)) {
						admit(outerSource(outer).within(from, false), in(set(inner, bits), false, bits, innerSource(inner)))
					}
				}
			}
		}
	}
}

// other keeps pods, and who sends inside an overlay, from claiming the address of a VTEP: what comes from a device such as they
// are behind has to have a source that is there. Nothing of the overlay comes by the overlay, of whatever VNI: a superpacket may
// hide a datagram of this network.
func (b builder) other() chain {
	c := chain{name: chainOther}
	if b.kernel {
		for _, d := range b.devices() {
			c.drop(dataplane.DropBadDestination, comesBy(d, false))
		}
	}
	if b.noKinds {
		return c
	}
	for _, kind := range []string{"veth", "bridge", "tun", "vxlan"} {
		conds := []cond{comesByKind(kind), wayBack(true)}
		if b.kernel { // the mark keeps out what a superpacket of another VNI hides; a socket takes all that comes
			conds = append(conds, vniIs(b.VNI, false))
		}
		c.drop(dataplane.DropUnknownVTEP, conds...)
	}
	c.add(none, comesByKind("vxlan"), clearMark(b.Mark)) // it is of the packet that this one was in
	return c
}

// reason counts what input has not accepted. What it cannot read is bad_header.
func (b builder) reason() chain {
	c := chain{name: chainReason}
	for _, f := range b.families() {
		unknown := []cond{of(f), b.isPeer(f, outerSource(f), true)}
		for _, p := range b.anyPeerFrom(f) {
			unknown = append(unknown, outerSource(f).within(p, true))
		}
		c.drop(dataplane.DropUnknownVTEP, unknown...)
	}
	for _, f := range []family{ipv4, ipv6} {
		outside := []cond{innerIs(f), innerDestination(f).isThere()}
		for _, own := range ofFamily(b.own, f) {
			outside = append(outside, innerDestination(f).within(own, true))
		}
		c.drop(dataplane.DropBadDestination, outside...)
		c.drop(dataplane.DropBadSource, innerIs(f), innerDestination(f).isThere())
	}
	c.drop(dataplane.DropBadHeader)
	return c
}
