package guard

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

// inner judges each packet that comes out of the kernel's overlay device.
func (b builder) inner() chain {
	c := chain{name: chainInner}
	if !b.kernel {
		return c
	}
	b.narrow(&c)
	for _, a := range b.broadcasts() {
		c.drop(dataplane.DropBadDestination, of(ipv4), outerDestination(ipv4).within(a, false))
	}
	switch alone := len(b.extra) == 0; { // else this process forwards too, and what it judged has neither origin nor mark
	case b.origins() && alone:
		b.ofOrigin(&c)
	case b.origins():
		c.add(none, clearOrigin())
		b.ofAnyPeer(&c)
	case alone && (b.secmarks() || !b.GBP):
		c.drop(dataplane.DropUnknownVTEP, b.accepted(true))
		c.add(none, b.clearAccepted())
		fallthrough
	default:
		b.ofAnyPeer(&c)
	}
	for _, f := range []family{ipv4, ipv6} {
		outside := []cond{of(f)}
		for _, own := range ofFamily(b.own, f) {
			outside = append(outside, outerDestination(f).within(own, true))
		}
		c.drop(dataplane.DropBadDestination, outside...)
	}
	c.drop(dataplane.DropBadSource)
	return c
}

// broadcasts returns the broadcast addresses of own subnets. The kernel delivers what is sent there to processes of this host.
func (b builder) broadcasts() (all []netip.Prefix) {
	for _, own := range ofFamily(b.own, ipv4) {
		if host := 32 - own.Bits(); host > 1 { // RFC 3021: a subnet of two addresses has none
			last := own.Masked().Addr().As4()
			binary.BigEndian.PutUint32(last[:], binary.BigEndian.Uint32(last[:])|(1<<host-1))
			all = append(all, netip.PrefixFrom(netip.AddrFrom4(last), 32))
		}
	}
	return all
}

// noBroadcast returns the conditions that a packet of that family goes to no broadcast address of an own subnet.
func (b builder) noBroadcast(f family) (conds []cond) {
	if f == ipv4 {
		for _, a := range b.broadcasts() {
			conds = append(conds, outerDestination(f).within(a, true))
		}
	}
	return conds
}

// ofOrigin admits what has a source of the VTEP that it is from, and what was judged: that is too short to be a datagram of the overlay itself, but not too
// short to have ports, as what could be hidden behind it is.
func (b builder) ofOrigin(c *chain) {
	b.judgeNested(c, b.isJudged(false))
	c.add(accept, append([]cond{hasPorts(), b.isJudged(false)}, b.ofLabels()...)...)
	c.drop(dataplane.DropUnknownVTEP, b.isNobodys()...)
	b.judgeNested(c)
	for _, f := range []family{ipv4, ipv6} {
		b.noDiscovery(c, f)
		for _, own := range ofFamily(b.own, f) {
			admit := func(from ...cond) {
				c.goTo(chainAdmitted, slices.Concat([]cond{of(f), outerDestination(f).within(own, false)}, from)...)
			}
			for _, outer := range b.families() {
				for _, bits := range b.lengths(func(bits int) string { return originSet(outer, f, bits) }, bitsOf(f)) {
					admit(in(originSet(outer, f, bits), false, bits, origin(), outerSource(f)))
				}
				if b.Check == dataplane.SourceOverlay && (outer == ipv4 || b.sets[vtepSet]) {
					admit(append([]cond{isVTEP(outer)}, b.outsiders(f)...)...)
				}
			}
		}
	}
}

// admitted takes the origin off UDP, which the translation of addresses may lead to the port.
func (b builder) admitted() chain {
	c := chain{name: chainAdmitted}
	if b.kernel && b.origins() {
		if !b.labels {
			c.add(accept, isUDP(true))
		}
		c.add(accept, clearOrigin())
	}
	return c
}

// judgeNested has nested judge what is for the port of this host.
func (b builder) judgeNested(c *chain, also ...cond) {
	c.jumpTo(chainNested, append(also, toPort(b.Port, false), isUDP(false), passesThrough(true))...)
}

// nested drops what would be a datagram of the overlay inside another one.
func (b builder) nested() chain {
	c := chain{name: chainNested}
	if b.kernel {
		c.skipLater()
		c.drop(dataplane.DropBadDestination)
	}
	return c
}

// outsiders are the conditions of strangers for what came out of the overlay, and that it has no other address of this host either. Of IPv4 the kernel itself
// takes none of those.
func (b builder) outsiders(f family) []cond {
	conds := b.strangers(f, outerSource(f))
	if f == ipv6 {
		conds = append(conds, notFromHere())
	}
	return conds
}

// fromDevice drops what this process has taken out of the overlay with another address of this host, which it does not know.
func (b builder) fromDevice(c *chain) {
	if b.kernel || b.Check != dataplane.SourceOverlay {
		return
	}
	for _, d := range b.devices() {
		c.drop(dataplane.DropBadSource, of(ipv6), comesBy(d, false), fromHere())
	}
}

// noDiscovery drops neighbour discovery, which the overlay does without, as arp_ignore keeps the kernel from ARP: from the questions of a peer the kernel would fill its
// table of neighbours, which is one for all network namespaces. It comes behind what admits IPv4.
func (b builder) noDiscovery(c *chain, f family) {
	if f == ipv6 && len(ofFamily(b.own, f)) > 0 { // else nothing of it is admitted
		c.drop(dataplane.DropBadHeader, of(f), isICMPv6(), isDiscovery(false))
	}
}

// ofAnyPeer admits what has a source of some VTEP.
func (b builder) ofAnyPeer(c *chain) {
	b.judgeNested(c)
	for _, f := range []family{ipv4, ipv6} {
		b.noDiscovery(c, f)
		for _, own := range ofFamily(b.own, f) {
			to := []cond{of(f), outerDestination(f).within(own, false)}
			admit := func(more ...cond) { c.add(accept, slices.Concat(to, more)...) }
			b.peers(f, func(from ...cond) { admit(from...) })
			for _, bits := range b.lengths(func(bits int) string { return wideSet(f, bits) }, bitsOf(f)) {
				admit(in(wideSet(f, bits), false, bits, outerSource(f)))
			}
			if slices.Contains(b.families(), f) {
				admit(isPeer(f, outerSource(f), false))
			}
			if b.Check == dataplane.SourceOverlay {
				admit(b.outsiders(f)...)
			}
		}
	}
}

// usualInner admits most of what comes out of the kernel's overlay device, as inner would, and leaves the rest to that. TCP keeps its origin: it cannot become a
// datagram of the overlay, wherever the translation of addresses leads it. Nor can ICMP.
func (b builder) usualInner() chain {
	c := chain{name: chainUsual}
	if !b.kernel {
		return c
	}
	if b.singles() { // for ICMP see narrow
		c.add(accept, slices.Concat([]cond{b.isJudged(false), isICMP(true), toPort(b.Port, true)}, b.noBroadcast(ipv4), b.ofLabels())...)
	}
	if b.origins() && len(b.extra) == 0 {
		for _, f := range b.families() {
			for _, own := range ofFamily(b.own, f) {
				b.usualOrigins(&c, f, own)
			}
		}
	}
	c.goTo(chainInner)
	return c
}

// usualOrigins admits what is for an own subnet and from one of the peer that sent it.
func (b builder) usualOrigins(c *chain, f family, own netip.Prefix) {
	for _, bits := range b.subnetLengths(func(bits int) string { return originSet(f, f, bits) }, f) {
		is := []cond{outerDestination(f).within(own, false), usualHeader(f)}
		from := in(originSet(f, f, bits), false, bits, origin(), outerSource(f))
		c.add(accept, slices.Concat(is, []cond{thenIs(f, unix.IPPROTO_TCP), from}, b.ofLabels())...)
		is = append(is, b.noBroadcast(f)...) // the kernel takes none of TCP
		c.add(accept, slices.Concat(is, []cond{thenIs(f, unix.IPPROTO_UDP), toPort(b.Port, true), from, clearOrigin()})...)
		c.add(accept, slices.Concat(is, usualICMP(f), []cond{from}, b.ofLabels())...)
	}
}
