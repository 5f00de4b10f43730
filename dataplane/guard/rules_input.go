package guard

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

// input judges what is for this host. Of a superpacket, which the kernel splits later, it sees only the first datagram.
func (b builder) input() chain {
	c := chain{name: chainInput, hook: base(unix.NF_INET_LOCAL_IN, first)}
	c.goTo(chainHere, toPort(b.Port, true))
	for _, outer := range b.families() {
		b.usualPairs(&c, outer)
	}
	c.goTo(chainHere, isUDP(true))
	c.jumpTo(chainOther, b.byUnderlay(true))
	switch { // another network's has a guard of its own, or wants none
	case b.kernel:
		c.goTo(chainStray, vniIs(b.VNI, true))
	case !b.Alone:
		c.add(accept, vniIs(b.VNI, true))
	}
	for _, outer := range b.families() {
		b.elsewhere(&c, outer)
		b.pairs(&c, outer)
	}
	if b.kernel {
		c.goTo(chainReason)
	} else {
		b.samples(&c)
	}
	return c
}

// elsewhere drops what is for an address to which no peer sends.
func (b builder) elsewhere(c *chain, outer family) {
	if to := b.local(outer); len(to) > 0 {
		conds := []cond{of(outer)}
		for _, a := range to {
			conds = append(conds, outerDestination(outer).within(a, true))
		}
		c.drop(dataplane.DropBadDestination, conds...)
	}
}

// local returns the addresses of a family to which peers send.
func (c *Config) local(f family) (all []netip.Prefix) {
	for _, a := range c.Local {
		if familyOf(a) == f {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return all
}

// usualPairs admits most datagrams by one rule, of which the kernel finds each part fast. The rules behind it would admit them too.
func (b builder) usualPairs(c *chain, f family) {
	if b.Link == 0 {
		return
	}
	is, then := b.ofNetwork(f)
	if b.kernel {
		is = append(is, vniIs(b.VNI, false))
	}
	for _, to := range b.local(f)[:min(1, len(b.local(f)))] {
		is = append([]cond{outerDestination(f).within(to, false)}, is...)
	}
	for _, own := range ofFamily(b.own, f) {
		to := slices.Concat([]cond{usualHeader(f), thenUDP(f), b.byUnderlay(false)}, is, []cond{innerIs(f), innerDestination(f).within(own, false)})
		for _, bits := range b.subnetLengths(func(bits int) string { return pairSet(f, f, bits) }, f) {
			c.add(accept, slices.Concat(to, []cond{in(pairSet(f, f, bits), false, bits, outerSource(f), innerSource(f))}, then)...)
		}
	}
}

// ofNetwork returns what is left to ask before a datagram is admitted, and what is then noted in it. The origin tells inner whom a datagram
// is from that was behind another one in a superpacket; without origins the mark tells that the first one was of this network.
func (b builder) ofNetwork(outer family) (is, then []cond) {
	switch {
	case !b.kernel: // a socket takes all that comes
		return []cond{plainFlags(), vniIs(b.VNI, false)}, nil
	case b.origins():
		return nil, []cond{b.setOrigin(outer)}
	}
	return nil, []cond{setMark(b.Mark)}
}

// samples admits to the sockets of this process some of what is not as it has to be, so that it can log and count that for what it
// is: more from VTEPs, of which one such datagram may be the first of a superpacket of good ones. The rest is a flood.
func (b builder) samples(c *chain) {
	const ofPeers, ofOthers = 500, 50
	for _, f := range b.families() {
		c.add(accept, of(f), plainFlags(), vniIs(b.VNI, false), isPeer(f, outerSource(f), false), limited(ofPeers))
		for _, p := range b.anyPeerFrom(f) {
			c.add(accept, of(f), plainFlags(), vniIs(b.VNI, false), outerSource(f).within(p, false), limited(ofPeers))
		}
	}
	c.add(accept, limited(ofOthers))
	c.drop(dataplane.DropFlood)
}

// pairs admits what known VTEPs send from their own subnets and addresses to a subnet of this host.
func (b builder) pairs(c *chain, outer family) {
	is, then := b.ofNetwork(outer)
	for _, inner := range []family{ipv4, ipv6} {
		for _, own := range ofFamily(b.own, inner) {
			to := slices.Concat([]cond{of(outer)}, is, []cond{innerIs(inner), innerDestination(inner).within(own, false)})
			admit := func(more ...cond) { c.add(accept, slices.Concat(to, more, then)...) }
			for _, bits := range b.lengths(func(bits int) string { return pairSet(outer, inner, bits) }, bitsOf(inner)) {
				admit(in(pairSet(outer, inner, bits), false, bits, outerSource(outer), innerSource(inner)))
			}
			if b.Check == dataplane.SourceOverlay {
				known := isPeer(outer, outerSource(outer), false)
				b.strangers(inner, innerSource(inner), func(outside ...cond) { admit(append(outside, known)...) })
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

// here judges the packets for this host that are no datagrams of an overlay.
func (b builder) here() chain {
	c := chain{name: chainHere}
	b.narrow(&c)
	for _, l := range b.indices { // arrive has judged these
		c.add(accept, comesByIndex(l, false))
	}
	c.goTo(chainPlain, b.byUnderlay(false))
	for _, d := range b.devices() {
		c.add(accept, comesBy(d, false))
	}
	c.goTo(chainPods)
	return c
}

// narrow drops ICMP messages that report a path to a VTEP below MinPathMTU. The sender and the quoted packet do not matter: the kernel would
// believe them all, and make packets of the overlay as small as 552 bytes. Over IPv6 it believes nothing below 1280. The userspace dataplane
// probes its paths itself.
func (b builder) narrow(c *chain) {
	if b.kernel && b.IPv4 && b.MinPathMTU > 0 {
		c.drop(dataplane.DropNarrowPath, header(9, unix.IPPROTO_ICMP), of(ipv4), tooBig(), mtuBelow(b.MinPathMTU), isPeer(ipv4, quotedDestination(), false))
	}
}

// fromPods are the conditions that a packet comes by a device that may lead to pods, and that this host would not send to its source by that
// device. Packets of peers may come by another interface of the underlay than the host sends by: that is a NIC, or a device of one of these kinds.
func (b builder) fromPods() []cond {
	var conds []cond
	for _, kind := range []string{"bond", "team", "vlan", "vrf"} {
		conds = append(conds, comesByOtherKind(kind))
	}
	return slices.Clip(append(conds, wayBack(true)))
}

// pods drops what pods send to this host and to each other in the name of pods of another host.
func (b builder) pods() chain {
	c := chain{name: chainPods}
	if b.settling || b.noKinds {
		return c
	}
	const loopback = 1 // its index in every network namespace
	c.add(back, comesByIndex(loopback, false))
	for _, own := range b.own {
		f := familyOf(own.Addr())
		c.add(back, of(f), outerSource(f).within(own, false))
	}
	for _, name := range b.Temporary { // its packets have been judged
		c.add(back, comesBy(name, false))
	}
	for _, f := range []family{ipv4, ipv6} {
		b.peers(f, func(from ...cond) {
			c.drop(dataplane.DropBadSource, slices.Concat([]cond{of(f)}, from, b.fromPods())...)
		})
	}
	return c
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
	if pods := b.fromPods(); b.kernel { // the mark or the origin keeps out what a superpacket of another VNI hides
		c.drop(dataplane.DropUnknownVTEP, append(pods, vniIs(b.VNI, false))...)
		if b.origins() { // whoever sent it can have given it the one that fits
			c.add(none, append(pods, clearOrigin())...)
		}
	} else { // a socket takes all that comes
		c.drop(dataplane.DropUnknownVTEP, pods...)
	}
	clear := clearMark(b.Mark)
	if b.origins() {
		clear = clearOrigin()
	}
	c.add(none, comesByKind("vxlan"), clear) // it is of the packet that this one was in
	return c
}

// reason counts what input has not accepted. What it cannot read is bad_header.
func (b builder) reason() chain {
	c := chain{name: chainReason}
	for _, f := range b.families() {
		unknown := []cond{of(f), isPeer(f, outerSource(f), true)}
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
