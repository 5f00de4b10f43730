package guard

import (
	"bytes"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

// egress drops what pods send to the port of a VTEP. This host may be a router between two VTEPs.
func (b builder) egress() chain {
	c := chain{name: chainEgress}
	c.skipLater()
	b.routed(&c, b.byUnderlay(true))
	for _, f := range b.families() {
		vtep := func(d field) cond { return isPeer(f, d, false) }
		c.add(accept, of(f), vtep(outerDestination(f)), vtep(outerSource(f)), wayBack(false))
		c.drop(dataplane.DropEgress, of(f), vtep(outerDestination(f)))
	}
	for _, f := range []family{ipv4, ipv6} { // a VTEP has other addresses, too
		for _, own := range ofFamily(b.own, f) {
			c.drop(dataplane.DropEgress, of(f), outerSource(f).within(own, false), vniIs(b.VNI, false))
			c.add(accept, of(f), outerSource(f).within(own, false), isFragment(f), hasVNI()) // a fragment of another network, or of no VXLAN
			c.drop(dataplane.DropFragment, of(f), outerSource(f).within(own, false), isFragment(f))
		}
	}
	c.drop(dataplane.DropEgress, vniIs(b.VNI, false), fromHere())
	c.add(accept)
	return c
}

// leave is where packets leave, behind the translation of addresses, which may lead a packet into the overlay, or to the port of a VTEP. What
// the kernel has encapsulated comes by the overlay device, and what a process has sent by none. What IPVS sends on comes by the device that it came by first.
func (b builder) leave() chain {
	c := chain{name: chainLeave, hook: base(unix.NF_INET_POST_ROUTING, behindNAT)}
	if b.signed() || !b.kernel {
		c.add(accept, toPort(b.Port, false), marked(b.Mark, false))
	} else {
		for _, l := range b.indices {
			for _, f := range b.ipvsFamilies() {
				is := []cond{comesByIndex(l, false)}
				if len(b.families()) > 1 {
					is = append(is, of(f))
				}
				c.goTo(chainSentOn, append(is, b.startedElsewhere(f)...)...)
			}
			c.add(accept, comesByIndex(l, false))
		}
	}
	b.judgeSenders(&c)
	c.jumpTo(chainToPort, toPort(b.Port, false))
	b.fromPort(&c)
	if b.signed() {
		b.sign(&c)
	}
	return c
}

// judgeSenders has senders judge what processes send over IPv6. What goes into the overlay needs no more then: it is for no VXLAN port of the underlay. So of IPv4 it
// meets as many conditions as without senders.
func (b builder) judgeSenders(c *chain) {
	if len(b.senders().rules) == 0 {
		return
	}
	c.jumpTo(chainSenders, of(ipv6), fromUser())
	if b.kernel && !b.signed() {
		for _, l := range b.indices {
			c.add(accept, leavesByIndex(l))
		}
	}
}

// senders drops what processes send from an overlay address of IPv6 that this host has not: every user may have such a source (IPV6_FREEBIND). Root may have it in IPv4, too,
// for a transparent proxy.
func (b builder) senders() chain {
	c := chain{name: chainSenders}
	b.peers(ipv6, func(from ...cond) {
		c.drop(dataplane.DropBadSource, slices.Concat(from, []cond{marked(b.Mark, true), notFromHere()})...)
	})
	for _, own := range ofFamily(b.own, ipv6) {
		if !b.vrf { // the kernel looks for addresses outside of it only
			c.drop(dataplane.DropBadSource, outerSource(ipv6).within(own, false), marked(b.Mark, true), notFromHere())
		}
	}
	return c
}

// sentOn judges what IPVS sends on that came out of the overlay.
func (b builder) sentOn() chain {
	c := chain{name: chainSentOn}
	for _, f := range b.ipvsFamilies() {
		c.drop(dataplane.DropEgress, slices.Concat([]cond{toPort(b.Port, false), isUDP(false), of(f)}, b.toPeer(f))...)
	}
	if len(b.ipvsFamilies()) > 0 {
		b.fromPort(&c)
	}
	return c
}

// fromPort drops what goes from the VXLAN port to a peer. Datagrams of the overlay that do have been admitted before: if every UDP port is taken, this process sends from that one.
// Connection tracking takes the datagrams of that peer to this host for the answers. If somebody masquerades, a pod would get them.
func (b builder) fromPort(c *chain) {
	for _, f := range b.families() {
		is := []cond{fromPort(b.Port), isUDP(false), of(f)}
		if f == ipv4 { // the kernel has put those of IPv6 together: see defrag
			is = append(is, hasOffset(true))
		}
		c.drop(dataplane.DropEgress, append(is, isPeer(f, outerDestination(f), false))...)
	}
}

// signed reports whether what the kernel encapsulates is known by the mark: an old kernel does not tell by which device it came, and with a VRF the device
// is the VRF's. That costs more, because the kernel looks up the route again for each packet with a mark.
func (b builder) signed() bool { return b.noIncoming || b.vrf }

// sign marks what goes into an overlay of the kernel, which keeps that when it encapsulates: of other networks too, which may send to the same VTEPs.
func (b builder) sign(c *chain) {
	for _, into := range b.overlays() {
		c.add(accept, into, fromSocket(), setMark(b.Mark))
	}
}

// overlays are conditions under which a packet goes into an overlay of the kernel.
func (b builder) overlays() (into []cond) {
	if !b.noKinds {
		return []cond{leavesByKind("vxlan")}
	}
	for _, d := range b.devices() {
		into = append(into, leavesBy(d))
	}
	return into
}

// toPort passes what the kernel has encapsulated, and what forward has judged. IPVS sends what it has translated without asking forward, and that
// comes by a vxlan device too, if it came out of an overlay.
func (b builder) toPort() chain {
	c := chain{name: chainToPort}
	for _, f := range b.ipvsFamilies() {
		c.drop(dataplane.DropEgress, slices.Concat([]cond{of(f)}, b.startedElsewhere(f), []cond{isUDP(false), vniIs(b.VNI, false)}, b.toPeer(f))...)
	}
	if !b.signed() {
		c.add(accept, comesByKind("vxlan"))
	}
	c.skipLater()
	c.goTo(chainOwn, fromSocket())
	for _, f := range b.families() {
		is := append([]cond{isUDP(false), of(f)}, b.toPeer(f)...)
		if !b.signed() {
			c.drop(dataplane.DropEgress, append([]cond{b.byUnderlay(true)}, is...)...)
		}
		c.drop(dataplane.DropEgress, append(is, b.byUnderlay(false), fromHere())...) // masquerading has made it this host's
	}
	if !b.signed() { // wherever it goes, because a checksum that is written later may replace that (see disguised)
		c.drop(dataplane.DropEgress, isUDP(false), vniIs(b.VNI, false), fromHere())
	}
	c.add(accept)
	return c
}

// ipvsFamilies are the families of the underlay in which IPVS may send on what came from elsewhere, in the name of this host. A name is changed by connection
// tracking only: where IPVS does without, a packet keeps the source that was judged.
func (b builder) ipvsFamilies() (all []family) {
	for _, f := range b.families() {
		if b.ipvs && len(b.local(f)) > 0 {
			all = append(all, f)
		}
	}
	return all
}

// startedElsewhere are the conditions that connection tracking has seen the packet come: what the kernel has encapsulated starts with an address of this host.
func (b builder) startedElsewhere(f family) (conds []cond) {
	for _, a := range b.local(f) {
		conds = append(conds, startedElsewhere(a.Addr()))
	}
	return conds
}

// toPeer are the conditions that a packet goes to a peer, and not from one.
func (b builder) toPeer(f family) []cond {
	return []cond{isPeer(f, outerSource(f), true), isPeer(f, outerDestination(f), false)}
}

// tracksIPVS reports whether IPVS keeps the connection tracking of what it sends on in this network namespace. The file exists once the kernel has IPVS.
func (c *Config) tracksIPVS() bool {
	b, err := os.ReadFile("/proc/sys/net/ipv4/vs/conntrack")
	return c.asIfIPVS || err == nil && string(bytes.TrimSpace(b)) != "0"
}

// processes drops what processes send to a VTEP, also to that of this host if a socket takes all that comes, or to any address in the name of this network.
func (b builder) processes() chain {
	c := chain{name: chainOwn}
	if b.signed() {
		b.sign(&c)
	}
	for _, into := range b.overlays() { // it is this port of a pod
		c.add(accept, into)
	}
	c.add(accept, isUDP(true))
	c.add(accept, marked(b.Mark, false))
	b.routed(&c)
	for _, f := range b.families() {
		c.drop(dataplane.DropEgress, of(f), isPeer(f, outerDestination(f), false))
		for _, a := range b.local(f) {
			if !b.kernel { // in a VRF it would come by the device of that, as what peers send
				c.drop(dataplane.DropEgress, of(f), outerDestination(f).within(a, false))
			}
		}
	}
	c.drop(dataplane.DropEgress, vniIs(b.VNI, false))
	c.add(accept)
	return c
}

// routed drops what has a source route, which every user may give a packet: that goes to a router first, and the route says to which VTEP then. Over IPv4 it is an option, and
// nobody sends datagrams with others to the port.
func (b builder) routed(c *chain, conds ...cond) {
	for _, f := range b.families() {
		c.drop(dataplane.DropEgress, append([]cond{of(f), hasRoute(f, false)}, conds...)...)
	}
}

// defrag has the kernel put fragments of IPv6 together before arrive and input see them: a rule that asks for the state
// of a connection suffices, wherever it is. The datagrams of the overlay themselves are not tracked, which costs much. Others to the port are: their addresses may be translated.
func (b builder) defrag() []chain {
	d := chain{name: chainDefrag}
	d.add(accept, tracked())
	in := chain{name: chainRawIn, hook: base(unix.NF_INET_PRE_ROUTING, raw)}
	in.add(notrack, of(ipv6), comesBy(b.Underlay, false), isUDP(false), toPort(b.Port, false), plainVNI(b.VNI, false))
	out := chain{name: chainRawOut, hook: base(unix.NF_INET_LOCAL_OUT, raw)}
	out.add(notrack, of(ipv6), isUDP(false), toPort(b.Port, false), plainVNI(b.VNI, false))
	return []chain{d, in, out}
}
