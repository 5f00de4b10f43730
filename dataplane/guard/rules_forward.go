package guard

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

// byUnderlay is the condition that a packet comes by the interface of the underlay, or does not. A session ends when that is
// made again.
func (b builder) byUnderlay(not bool) cond {
	if b.Link != 0 {
		return comesByIndex(b.Link, not)
	}
	return comesBy(b.Underlay, not)
}

// forward judges what this host forwards. What comes by the underlay is plain even if it goes into the overlay.
func (b builder) forward() chain {
	c := chain{name: chainForward, hook: base(unix.NF_INET_FORWARD, first)}
	b.fromDevice(&c)
	for _, l := range b.indices { // it is judged, but its destination may have been translated since
		c.jumpTo(chainEgress, comesByIndex(l, false), toPort(b.Port, false), isUDP(false))
		for _, own := range b.own {
			f := familyOf(own.Addr())
			c.add(accept, comesByIndex(l, false), of(f), outerDestination(f).within(own, false))
		}
	}
	for _, l := range b.indices { // what pods send, first what there is most of
		for _, own := range b.own {
			is := b.atHome(own)
			if b.kernel { // pods has asked where it comes from
				is = inOwn(own)
			}
			c.add(accept, append([]cond{leavesByIndex(l), b.byUnderlay(true)}, is...)...)
		}
	}
	c.jumpTo(chainDisguised)
	if slices.Contains(b.families(), ipv6) { // over IPv4 the kernel itself does
		for _, l := range b.indices {
			c.drop(dataplane.DropBadSource, leavesByIndex(l), b.byUnderlay(false), of(ipv6), fromHere())
		}
	}
	b.toPlain(&c, b.byUnderlay(false))
	for _, l := range b.indices {
		c.add(accept, comesByIndex(l, false))
	}
	for _, d := range b.devices() {
		c.jumpTo(chainEgress, comesBy(d, false), toPort(b.Port, false), isUDP(false))
		c.add(accept, comesBy(d, false))
	}
	if !b.kernel { // else here has sent it there
		c.jumpTo(chainPods)
	}
	for _, l := range b.indices {
		c.goTo(chainSpoof, leavesByIndex(l))
	}
	for _, d := range b.devices() {
		c.goTo(chainSpoof, leavesBy(d))
	}
	if b.Direct || b.settling { // direct routes may still be there
		c.jumpTo(chainSpoof, leavesBy(b.Underlay))
	}
	c.jumpTo(chainEgress, toPort(b.Port, false), isUDP(false))
	return c
}

// disguised drops packets to a VTEP that have a VXLAN header of this network, whatever their protocol and port are. A pod with packet sockets can have the checksum, which the
// kernel or the NIC writes behind all hooks, replace two bytes of its headers, and choose its value: that makes a datagram of the overlay of such a packet.
func (b builder) disguised() chain {
	c := chain{name: chainDisguised}
	for _, f := range b.families() {
		c.add(back, of(f), isPeer(f, outerDestination(f), true), hasRoute(f, true)) // see routed
		c.add(back, of(f), isPeer(f, outerSource(f), false), wayBack(false))
		for _, at := range vxlanOffsets(f) {
			c.drop(dataplane.DropEgress, of(f), b.flagsAt(at), vniAt(at, b.VNI))
		}
	}
	return c
}

// vxlanOffsets returns where a VXLAN header may be, in bytes from the IP header. In IPv4 it is behind options of any length, and in IPv6 behind extension headers of
// up to 64 bytes.
func vxlanOffsets(f family) (all []uint32) {
	if f == ipv6 {
		for at := uint32(40); at <= 40+64; at += 8 {
			all = append(all, at+atFlags)
		}
		return all
	}
	for words := uint32(5); words <= 15; words++ {
		all = append(all, 4*words+atFlags)
	}
	return all
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
