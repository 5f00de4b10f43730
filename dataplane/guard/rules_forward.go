package guard

import (
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
	switch alone := len(b.extra) == 0; { // else this process forwards too, and what it judged has neither origin nor mark
	case b.origins() && alone:
		b.ofOrigin(&c)
	case b.origins():
		c.add(none, clearOrigin())
		b.ofAnyPeer(&c)
	case alone:
		c.drop(dataplane.DropUnknownVTEP, marked(b.Mark, true))
		c.add(none, clearMark(b.Mark))
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

// ofOrigin admits what has a source of the VTEP that it is from, and what was judged: that is too short to be a datagram of the overlay itself, but not too
// short to have ports, as what could be hidden behind it is.
func (b builder) ofOrigin(c *chain) {
	b.nested(c, b.isJudged())
	c.add(accept, append([]cond{hasPorts(), b.isJudged()}, b.ofLabels()...)...)
	c.drop(dataplane.DropUnknownVTEP, b.isNobodys()...)
	b.nested(c)
	for _, f := range []family{ipv4, ipv6} {
		for _, own := range ofFamily(b.own, f) {
			admit := func(from ...cond) {
				c.goTo(chainAdmitted, slices.Concat([]cond{of(f), outerDestination(f).within(own, false)}, from)...)
			}
			for _, outer := range b.families() {
				for _, bits := range b.lengths(func(bits int) string { return originSet(outer, f, bits) }, bitsOf(f)) {
					admit(in(originSet(outer, f, bits), false, bits, origin(), outerSource(f)))
				}
				if b.Check == dataplane.SourceOverlay && (outer == ipv4 || b.sets[vtepSet]) {
					b.strangers(f, outerSource(f), func(outside ...cond) { admit(append([]cond{isVTEP(outer)}, outside...)...) })
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

// nested drops what is for the port of this host: it would be a datagram of the overlay inside another one.
func (b builder) nested(c *chain, also ...cond) {
	c.drop(dataplane.DropBadDestination, append(also, toPort(b.Port, false), isUDP(false), passesThrough(true))...)
}

// ofAnyPeer admits what has a source of some VTEP.
func (b builder) ofAnyPeer(c *chain) {
	b.nested(c)
	for _, f := range []family{ipv4, ipv6} {
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
				b.strangers(f, outerSource(f), func(from ...cond) { admit(from...) })
			}
		}
	}
}

// usualInner admits most of what comes out of the overlay, as inner would. TCP keeps its origin: it cannot become a datagram of the overlay, wherever the
// translation of addresses leads it. Nor can ICMP.
func (b builder) usualInner(c *chain) {
	if !b.origins() || len(b.extra) > 0 {
		return
	}
	for _, l := range b.indices {
		for _, f := range b.families() {
			for _, own := range ofFamily(b.own, f) {
				for _, bits := range b.subnetLengths(func(bits int) string { return originSet(f, f, bits) }, f) {
					is := []cond{comesByIndex(l, false), outerDestination(f).within(own, false), usualHeader(f)}
					from := in(originSet(f, f, bits), false, bits, origin(), outerSource(f))
					c.add(accept, slices.Concat(is, []cond{thenIs(f, unix.IPPROTO_TCP), from}, b.ofLabels())...)
					c.add(accept, slices.Concat(is, []cond{thenIs(f, unix.IPPROTO_UDP), toPort(b.Port, true), from, clearOrigin()})...)
					c.add(accept, slices.Concat(is, usualICMP(f), []cond{from}, b.ofLabels())...)
				}
			}
		}
	}
}

// byUnderlay is the condition that a packet comes by the interface of the underlay, or does not. A session ends when that is
// made again.
func (b builder) byUnderlay(not bool) cond {
	if b.Link != 0 {
		return comesByIndex(b.Link, not)
	}
	return comesBy(b.Underlay, not)
}

// plain is for what is no datagram of the overlay. What comes by the underlay has no overlay address, unless direct routes
// lead there.
func (b builder) plain() chain {
	c := chain{name: chainPlain}
	if b.AllowPlain || b.settling {
		return c
	}
	for _, f := range []family{ipv4, ipv6} {
		if b.Direct {
			for _, bits := range b.leaseLengths(f) {
				c.add(back, of(f), in(leaseSet(f, bits), false, bits, outerSource(f)))
			}
		}
		for _, own := range ofFamily(b.own, f) {
			c.drop(dataplane.DropPlainSource, of(f), outerSource(f).within(own, false))
		}
		if !b.mixed(f) || !b.Direct {
			b.peers(f, func(from ...cond) { c.drop(dataplane.DropPlainSource, append([]cond{of(f)}, from...)...) })
		}
	}
	return c
}

// forward judges what this host forwards. What comes by the underlay is plain even if it goes into the overlay.
func (b builder) forward() chain {
	c := chain{name: chainForward, hook: base(unix.NF_INET_FORWARD, first)}
	for _, l := range b.indices { // it is judged, but its destination may have been translated since
		c.goTo(chainEgress, comesByIndex(l, false), toPort(b.Port, false), isUDP(false))
		c.add(accept, comesByIndex(l, false))
	}
	for _, l := range b.indices { // what pods send, first what there is most of
		for _, own := range b.own {
			f := familyOf(own.Addr())
			c.add(accept, leavesByIndex(l), b.byUnderlay(true), of(f), outerSource(f).within(own, false))
		}
	}
	c.goTo(chainPlain, b.byUnderlay(false))
	for _, l := range b.indices {
		c.goTo(chainSpoof, leavesByIndex(l))
	}
	for _, d := range b.devices() {
		c.goTo(chainEgress, comesBy(d, false), toPort(b.Port, false), isUDP(false))
		c.add(accept, comesBy(d, false))
		c.goTo(chainSpoof, leavesBy(d))
	}
	if b.Direct {
		c.jumpTo(chainSpoof, leavesBy(b.Underlay))
	}
	b.disguised(&c)
	if !b.kernel { // else here has sent it there
		c.jumpTo(chainPods)
	}
	c.goTo(chainEgress, toPort(b.Port, false), isUDP(false))
	return c
}

// disguised drops datagrams of the overlay to another port of a VTEP. A pod with packet sockets can place the checksum, which the kernel or the NIC
// writes behind all hooks, over the destination port, and choose its value.
func (b builder) disguised(c *chain) {
	for _, f := range b.families() {
		c.drop(dataplane.DropEgress, b.ownFlags(false), vniIs(b.VNI, false), toPort(b.Port, true), isUDP(false), of(f), isPeer(f, outerDestination(f), false), isPeer(f, outerSource(f), true))
	}
}

// spoof drops packets of pods that have a source of another host's, or an address of this host, as the kernel itself does with IPv4.
func (b builder) spoof() chain {
	c := chain{name: chainSpoof}
	for _, f := range []family{ipv4, ipv6} {
		for _, own := range ofFamily(b.own, f) {
			c.add(back, of(f), outerSource(f).within(own, false))
		}
		b.peers(f, func(from ...cond) { c.drop(dataplane.DropBadSource, append([]cond{of(f)}, from...)...) })
	}
	c.drop(dataplane.DropBadSource, fromHere())
	return c
}
