package guard

import (
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/dataplane"
)

// loopback is the index of its device in every network namespace.
const loopback = 1

// toPlain sends what comes by the interface of the underlay to plain. An address of the loopback device says nothing about the links: then pods judges all of them.
func (b builder) toPlain(c *chain, byUnderlay cond) {
	if b.Underlay != "lo" && b.Link != loopback {
		c.goTo(chainPlain, byUnderlay)
	}
}

// allowsPlain reports whether packets with overlay sources may come without encapsulation, though not from pods with sources of other hosts.
func (b builder) allowsPlain() bool { return b.AllowPlain || b.settling }

// plain is for what is no datagram of the overlay. What comes by the underlay has no overlay address, unless direct routes
// lead there.
func (b builder) plain() chain {
	c := chain{name: chainPlain}
	if b.allowsPlain() {
		return c
	}
	for _, f := range []family{ipv4, ipv6} {
		if b.Direct {
			b.leases(f, func(from ...cond) { c.add(back, from...) })
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

// leases calls once for each set of conditions under which a source is in the subnet of a peer, if there are sets of these.
func (b builder) leases(f family, are func(...cond)) {
	for _, bits := range b.leaseLengths(f) {
		are(of(f), in(leaseSet(f, bits), false, bits, outerSource(f)))
	}
}

// pods judges what comes by any other interface than the underlay's. A source that is an overlay address has to be where this host has a route to it: that of
// an own pod behind a bridge, or a device for each pod. The kernel is asked for each packet, so that a route counts as soon as it is there. A default route does not
// count: what no other route leads to is unreachable (hostroute.Nowhere).
func (b builder) pods() chain {
	c := chain{name: chainPods}
	if b.Link != 0 { // An interface that was made again has another index until the next session.
		b.toPlain(&c, comesBy(b.Underlay, false))
	}
	if b.allowsPlain() && b.noKinds {
		return c
	}
	c.add(back, comesByIndex(loopback, false))
	if b.kernel && b.vrf && !b.noKinds {
		c.add(back, comesByKind("vrf")) // it has come before, by an interface of the VRF
	}
	for _, own := range b.own {
		c.add(back, b.atHome(own)...)
	}
	for _, name := range b.Temporary { // its packets have been judged
		c.add(back, comesBy(name, false))
	}
	for _, f := range []family{ipv4, ipv6} {
		if b.allowsPlain() { // what comes by a NIC and the like may be plain
			b.peers(f, func(from ...cond) {
				c.drop(dataplane.DropBadSource, slices.Concat([]cond{of(f)}, from, b.fromPods())...)
			})
			continue
		}
		b.strays(&c, f)
	}
	return c
}

// inOwn are the conditions that a source is in an own subnet.
func inOwn(own netip.Prefix) []cond {
	f := familyOf(own.Addr())
	return []cond{of(f), outerSource(f).within(own, false)}
}

// atHome are the conditions that a source is in an own subnet, and comes from where that is.
func (b builder) atHome(own netip.Prefix) []cond {
	if b.allowsPlain() {
		return inOwn(own)
	}
	return append(inOwn(own), wayBack(false))
}

// strays sends to astray what has an overlay address and comes from elsewhere.
func (b builder) strays(c *chain, f family) {
	if b.Direct { // a peer's packets may come by another interface than this host sends by
		b.leases(f, func(from ...cond) {
			if !b.noKinds {
				c.goTo(chainAstray, slices.Concat(from, b.fromPods())...)
			}
			c.add(back, from...)
		})
	}
	for _, own := range ofFamily(b.own, f) {
		c.goTo(chainAstray, of(f), outerSource(f).within(own, false))
	}
	if !b.mixed(f) || !b.Direct {
		b.peers(f, func(from ...cond) { c.goTo(chainAstray, slices.Concat([]cond{of(f)}, from, []cond{wayBack(true)})...) })
	}
}

// astray drops what has an overlay address that is elsewhere: as bad_source if pods are behind the interface that it came by, else as plain_source. To ask for that, it
// gives the packet the source of a pod. Nobody gets the packet any more.
func (b builder) astray() chain {
	c := chain{name: chainAstray}
	for _, own := range b.own {
		if pod := own.Addr().Next().Next(); own.Contains(pod) { // behind those of the overlay device and the gateway
			c.drop(dataplane.DropBadSource, of(familyOf(pod)), setSource(pod), wayBack(false))
		}
	}
	c.drop(dataplane.DropPlainSource)
	return c
}
