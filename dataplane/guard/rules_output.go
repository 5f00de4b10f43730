package guard

import (
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

// egress drops what pods send to the port of a VTEP. This host may be a router between two VTEPs.
func (b builder) egress() chain {
	c := chain{name: chainEgress}
	for _, f := range b.families() {
		vtep := func(d field) cond { return isPeer(f, d, false) }
		c.add(accept, of(f), vtep(outerDestination(f)), vtep(outerSource(f)), wayBack(false))
		c.drop(dataplane.DropEgress, of(f), vtep(outerDestination(f)))
	}
	for _, f := range []family{ipv4, ipv6} { // a VTEP has other addresses, too
		for _, own := range ofFamily(b.own, f) {
			c.drop(dataplane.DropFragment, of(f), outerSource(f).within(own, false), isFragment(f))
			c.drop(dataplane.DropEgress, of(f), outerSource(f).within(own, false), vniIs(b.VNI, false))
		}
	}
	return c
}

// output signs what goes into the overlay: the kernel keeps that when it encapsulates, and so lets its datagram pass. It is where packets
// leave, behind the translation of addresses, which may lead a packet into the overlay, or to the port of a VTEP. What there is most of comes
// first: each packet of an overlay passes here twice. The port tells the second time from the first faster than the device.
func (b builder) output() chain {
	c := chain{name: chainOutput, hook: base(unix.NF_INET_POST_ROUTING, first)}
	known := marked(b.Mark, false)
	if b.kernel {
		known = b.signed()
	}
	c.add(accept, toPort(b.Port, false), known)
	if b.kernel {
		for _, l := range b.indices {
			c.add(accept, b.sign(leavesByIndex(l))...)
		}
	}
	c.goTo(chainToPort, toPort(b.Port, false))
	b.signs(&c)
	return c
}

// signs signs what goes into an overlay of the kernel: of other networks too, which may send to the same VTEPs.
func (b builder) signs(c *chain) {
	if !b.noKinds {
		c.add(accept, b.sign(leavesByKind("vxlan"))...)
		return
	}
	for _, d := range b.devices() {
		c.add(accept, b.sign(leavesBy(d))...)
	}
}

// toPort passes what no process has sent: what the kernel has encapsulated for others, and what forward has judged.
func (b builder) toPort() chain {
	c := chain{name: chainToPort}
	c.goTo(chainOwn, fromSocket())
	return c
}

// processes drops what processes send to a VTEP, or to any address in the name of this network.
func (b builder) processes() chain {
	c := chain{name: chainOwn}
	b.signs(&c) // it is this port of a pod
	c.add(accept, isUDP(true))
	c.add(accept, marked(b.Mark, false))
	if b.secmarked() {
		c.add(accept, b.signed())
	}
	for _, f := range b.families() {
		c.drop(dataplane.DropEgress, of(f), isPeer(f, outerDestination(f), false))
	}
	c.drop(dataplane.DropEgress, vniIs(b.VNI, false))
	return c
}

// defrag has the kernel put fragments of IPv6 together before input, as it does those of IPv4: a rule that asks for the state
// of a connection suffices, wherever it is. The datagrams of the overlay themselves are not tracked, which costs much.
func (b builder) defrag() []chain {
	d := chain{name: chainDefrag}
	d.add(accept, tracked())
	in := chain{name: chainRawIn, hook: base(unix.NF_INET_PRE_ROUTING, raw)}
	in.add(notrack, of(ipv6), comesBy(b.Underlay, false), isUDP(false), toPort(b.Port, false))
	out := chain{name: chainRawOut, hook: base(unix.NF_INET_LOCAL_OUT, raw)}
	out.add(notrack, of(ipv6), isUDP(false), toPort(b.Port, false))
	return []chain{d, in, out}
}
