package guard

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

// arrive judges all that comes before addresses are translated, if the kernel forwards: what comes out of the overlay, too. Later the translation may
// lead it elsewhere, as the answer to a packet whose source was translated. The hook ingress of the overlay device would cost less, but there the kernel
// has not yet found what is IP behind two VLAN tags.
func (b builder) arrive() chain {
	c := chain{name: chainArrive, hook: base(unix.NF_INET_PRE_ROUTING, first)}
	for _, l := range b.indices { // an index costs less than a name, which stays when a device is made again
		c.goTo(chainUsual, comesByIndex(l, false))
	}
	b.usualSingles(&c) // of all packets the rules cost short ones most
	b.usualDatagrams(&c)
	for _, d := range b.devices() {
		c.goTo(chainInner, comesBy(d, false))
	}
	c.goTo(chainDatagrams, toPort(b.Port, false), isUDP(false))
	c.goTo(chainHere)
	return c
}

// input judges what is for this host, if this process forwards.
func (b builder) input() chain {
	c := chain{name: chainInput, hook: base(unix.NF_INET_LOCAL_IN, first)}
	b.usualDatagrams(&c)
	c.goTo(chainDatagrams, toPort(b.Port, false), isUDP(false))
	c.goTo(chainHere)
	return c
}

// datagrams judges datagrams to the port. Of a superpacket, which the kernel splits later, it sees only the first one. In arrive it may see the first
// fragment of one.
func (b builder) datagrams() chain {
	c := chain{name: chainDatagrams}
	if b.kernel {
		for _, f := range []family{ipv4, ipv6} {
			c.goTo(chainHere, isLater(f)...)
		}
		for _, f := range []family{ipv4, ipv6} {
			c.goTo(chainHere, append(b.notLocal(f), passesThrough(false))...) // forward judges what is for others
		}
	} else { // no peer is behind it, and every process may send in the name of one over IPv6 (IPV6_FREEBIND), behind a datagram of another network
		c.drop(dataplane.DropUnknownVTEP, comesByIndex(loopback, false))
	}
	others := []cond{b.byUnderlay(true)}
	if b.kernel && b.below != 0 {
		others = append(others, comesByIndex(b.below, true))
	}
	c.jumpTo(chainOther, others...)
	switch { // another network's has a guard of its own, or wants none
	case b.kernel:
		c.goTo(chainStray, vniIs(b.VNI, true))
	case !b.Alone:
		c.add(accept, vniIs(b.VNI, true))
	}
	for _, outer := range b.families() {
		b.elsewhere(&c, outer)
		b.insiders(&c, outer)
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
	if len(b.local(outer)) > 0 {
		c.drop(dataplane.DropBadDestination, b.notLocal(outer)...)
	}
}

// insiders drops what comes from an address of the overlay or of this host that is no peer's, if any peer's packets may come from there: pods and processes have it.
func (b builder) insiders(c *chain, f family) {
	from := b.anyPeerFrom(f)
	stranger := slices.Clip([]cond{of(f), isPeer(f, outerSource(f), true)})
	for _, p := range b.inside(f) {
		if slices.ContainsFunc(from, p.Overlaps) {
			c.drop(dataplane.DropUnknownVTEP, append(stranger, outerSource(f).within(p, false))...)
		}
	}
	if b.mixed(f) && len(from) > 0 {
		b.leases(f, func(is ...cond) { c.drop(dataplane.DropUnknownVTEP, append(stranger, is...)...) })
	}
}

// notLocal are the conditions that a packet of that family is for none of the addresses to which peers send.
func (c *Config) notLocal(f family) []cond {
	conds := []cond{of(f)}
	for _, a := range c.local(f) {
		conds = append(conds, outerDestination(f).within(a, true))
	}
	return conds
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

// usualDatagrams admits most datagrams by a rule of which the kernel finds each part fast. The rules of datagrams would admit them too.
// It asks for the inner destination although a process that forwards does, too: else a flood in the name of a VTEP would reach its sockets.
func (b builder) usualDatagrams(c *chain) {
	if b.Link == 0 {
		return
	}
	for _, f := range b.families() {
		b.usualPairs(c, innerDestination(f), b.usual(f, usualHeader(f)), b.noteAccepted(f)...)
	}
}

// noteAccepted has inner know what was accepted. It is no condition. With GBP and without secmarks nothing can: the kernel writes the group over the mark.
func (b builder) noteAccepted(outer family) []cond {
	switch {
	case !b.kernel, b.GBP && !b.secmarks():
		return nil
	case b.origins():
		return []cond{b.setOrigin(outer)}
	}
	return []cond{b.setAccepted()}
}

// usualSingles admits most of the shortest datagrams over IPv4. usualInner does what comes out of them.
func (b builder) usualSingles(c *chain) {
	if !b.singles() {
		return
	}
	to := innerDestination(ipv4)
	to.there = true
	b.usualPairs(c, to, b.usual(ipv4, isSingle()...), b.setJudged())
}

// singles reports whether the shortest datagrams over IPv4 are judged whole.
func (b builder) singles() bool {
	return b.origins() && len(b.extra) == 0 && b.IPv4 && b.Link != 0
}

// usual are the conditions that most datagrams of this network meet, with those about the IP header. The first of these is the first: it tells
// short datagrams from others.
func (b builder) usual(f family, header ...cond) (is []cond) {
	is = append(is, header[0])
	for _, to := range b.local(f)[:min(1, len(b.local(f)))] {
		is = append(is, outerDestination(f).within(to, false))
	}
	return append(append(is, header[1:]...), thenIs(f, unix.IPPROTO_UDP), toPort(b.Port, false), b.byUnderlay(false), b.ownFlags(false), plainVNI(b.VNI, false), innerIs(f))
}

func (b builder) usualPairs(c *chain, to field, is []cond, then ...cond) {
	f := to.family
	for _, own := range ofFamily(b.own, f) {
		for _, bits := range b.subnetLengths(func(bits int) string { return pairSet(f, f, bits) }, f) {
			pair := in(pairSet(f, f, bits), false, bits, outerSource(f), innerSource(f))
			c.add(accept, slices.Concat(is, []cond{to.within(own, false), pair}, then)...)
		}
	}
}

// samples admits to the sockets of this process some of what is not as it has to be, so that it can log and count that for what it
// is: more from VTEPs, of which one such datagram may be the first of a superpacket of good ones. The rest is a flood.
func (b builder) samples(c *chain) {
	const ofPeers, ofOthers = 500, 50
	for _, f := range b.families() {
		c.add(accept, of(f), b.ownFlags(false), vniIs(b.VNI, false), isPeer(f, outerSource(f), false), limited(ofPeers))
		for _, p := range b.anyPeerFrom(f) {
			c.add(accept, of(f), b.ownFlags(false), vniIs(b.VNI, false), outerSource(f).within(p, false), limited(ofPeers))
		}
	}
	c.add(accept, limited(ofOthers))
	c.drop(dataplane.DropFlood)
}

// pairs admits what known VTEPs send from their own subnets and addresses to a subnet of this host. The origin tells inner whom a datagram is from that
// was behind another one in a superpacket; without origins the secmark or the mark tells that the first one was of this network.
func (b builder) pairs(c *chain, outer family) {
	is, then := []cond{b.ownFlags(false), plainVNI(b.VNI, false)}, b.noteAccepted(outer)
	for _, inner := range []family{ipv4, ipv6} {
		for _, own := range ofFamily(b.own, inner) {
			to := slices.Concat([]cond{of(outer)}, is, []cond{innerIs(inner), innerDestination(inner).within(own, false)})
			admit := func(more ...cond) { c.add(accept, slices.Concat(to, more, then)...) }
			for _, bits := range b.lengths(func(bits int) string { return pairSet(outer, inner, bits) }, bitsOf(inner)) {
				admit(in(pairSet(outer, inner, bits), false, bits, outerSource(outer), innerSource(inner)))
			}
			if b.Check == dataplane.SourceOverlay {
				admit(append(b.strangers(inner, innerSource(inner)), isPeer(outer, outerSource(outer), false))...)
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

// here judges the packets that are no datagrams of an overlay, and do not come out of one.
func (b builder) here() chain {
	c := chain{name: chainHere}
	b.narrow(&c) // the kernel may forward next, and remembers a path for ten minutes
	if b.kernel {
		if b.secmarks() {
			c.jumpTo(chainForeign, hasOrigin())
		}
		b.toPlain(&c, b.byUnderlay(false))
		c.goTo(chainPods)
		return c
	}
	b.fromDevice(&c)
	for _, l := range b.indices { // this process has judged these
		c.add(accept, comesByIndex(l, false))
	}
	b.toPlain(&c, b.byUnderlay(false))
	for _, d := range b.devices() {
		c.add(accept, comesBy(d, false))
	}
	c.goTo(chainPods)
	return c
}

// foreign takes an origin of this network from what is no datagram of it. The translation of addresses may make it one later.
func (b builder) foreign() chain {
	c := chain{name: chainForeign}
	if !b.kernel || !b.secmarks() || b.noKinds {
		return c
	}
	c.add(back, comesByKind("vxlan")) // it is for the guard of that network
	b.disown(&c)
	c.add(none, append(b.fromPods(), clearOrigin())...) // whoever sent it can have given it the one that fits
	return c
}

// narrow drops ICMP messages that report a path to a VTEP below MinPathMTU. The sender and the quoted packet do not matter: the kernel would
// believe them all, and make packets of the overlay as small as 552 bytes. Over IPv6 it believes nothing below 1280. The userspace dataplane probes
// its paths itself, but the kernel dataplane may come after it.
func (b builder) narrow(c *chain) {
	if b.IPv4 && b.MinPathMTU > 0 {
		narrow := []cond{isICMP(false), of(ipv4), tooBig(), mtuBelow(b.MinPathMTU), hasOffset(true)}
		c.drop(dataplane.DropNarrowPath, append(narrow, isPeer(ipv4, quotedDestination(), false))...)
		c.drop(dataplane.DropNarrowPath, append(slices.Clip(narrow), isFragment(ipv4))...) // nobody sends it in pieces, but to hide what it quotes
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
		if b.secmarks() { // whoever sent it can have given it the one that fits
			c.add(none, append(pods, clearOrigin())...)
		}
	} else { // a socket takes all that comes
		c.drop(dataplane.DropUnknownVTEP, pods...)
	}
	c.add(none, comesByKind("vxlan"), b.clearAccepted()) // it is of the packet that this one was in
	return c
}

// reason counts what datagrams has not accepted. What it cannot read is bad_header, or fragment if that is why.
func (b builder) reason() chain {
	c := chain{name: chainReason}
	for _, f := range b.families() {
		unknown := []cond{of(f), isPeer(f, outerSource(f), true)}
		for _, p := range b.anyPeerFrom(f) {
			unknown = append(unknown, outerSource(f).within(p, true))
		}
		c.drop(dataplane.DropUnknownVTEP, unknown...)
	}
	c.drop(dataplane.DropBadVNI, b.ownFlags(true)) // the kernel would drop both, and count neither
	c.drop(dataplane.DropBadVNI, plainVNI(b.VNI, true))
	for _, f := range []family{ipv4, ipv6} {
		outside := []cond{innerIs(f), innerDestination(f).isThere()}
		for _, own := range ofFamily(b.own, f) {
			outside = append(outside, innerDestination(f).within(own, true))
		}
		c.drop(dataplane.DropBadDestination, outside...)
		c.drop(dataplane.DropBadSource, innerIs(f), innerDestination(f).isThere())
	}
	if b.kernel && b.IPv4 { // the first fragment is too short to tell
		for _, f := range []family{ipv4, ipv6} {
			c.drop(dataplane.DropFragment, of(ipv4), isFragment(ipv4), innerIs(f))
		}
		c.drop(dataplane.DropBadHeader, hasEtherType())
		c.drop(dataplane.DropFragment, of(ipv4), isFragment(ipv4))
	}
	c.drop(dataplane.DropBadHeader)
	return c
}
