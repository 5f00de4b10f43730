package guard

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/nft"
)

// rule is one rule: all conditions must be met.
type rule struct {
	conds []cond
	drop  dataplane.Drop // counted, if do is drop
	do    verdict
	to    string // the chain, if do is jump or go
}

type verdict uint8

const (
	none verdict = iota // only what the conditions do
	accept
	drop
	back // to the chain that jumped
	jump
	proceed
	notrack
)

// String returns the rule much as the nft command writes it.
func (r rule) String() string {
	var words []string
	for _, c := range r.conds {
		words = append(words, c.text)
	}
	switch r.do {
	case accept:
		words = append(words, "accept")
	case drop:
		words = append(words, "drop "+r.drop.String())
	case back:
		words = append(words, "return")
	case jump:
		words = append(words, "jump "+r.to)
	case proceed:
		words = append(words, "goto "+r.to)
	case notrack:
		words = append(words, "notrack")
	}
	return strings.Join(words, ", ")
}

// encode returns the rule for the kernel.
func (r rule) encode() ([][]byte, error) {
	var list []expr.Any
	for _, c := range r.conds {
		list = append(list, c.exprs...)
	}
	switch r.do {
	case accept:
		list = append(list, &expr.Verdict{Kind: expr.VerdictAccept})
	case drop:
		list = append(list, nft.Count(r.drop.String()), &expr.Verdict{Kind: expr.VerdictDrop})
	case back:
		list = append(list, &expr.Verdict{Kind: expr.VerdictReturn})
	case jump:
		list = append(list, &expr.Verdict{Kind: expr.VerdictJump, Chain: r.to})
	case proceed:
		list = append(list, &expr.Verdict{Kind: expr.VerdictGoto, Chain: r.to})
	case notrack:
		list = append(list, &expr.Notrack{})
	}
	return nft.Encode(nft.Inet, list...)
}

// chain is one chain: a base chain, unless hook is nil.
type chain struct {
	name  string
	hook  *nft.Hook
	rules []rule
}

func (c *chain) add(do verdict, conds ...cond) { c.rules = append(c.rules, rule{conds: conds, do: do}) }

func (c *chain) goTo(to string, conds ...cond) {
	c.rules = append(c.rules, rule{conds: conds, do: proceed, to: to})
}

func (c *chain) jumpTo(to string, conds ...cond) {
	c.rules = append(c.rules, rule{conds: conds, do: jump, to: to})
}

func (c *chain) drop(why dataplane.Drop, conds ...cond) {
	c.rules = append(c.rules, rule{conds: conds, do: drop, drop: why})
}

// The priorities of base chains: before what others have, and for what is not to be tracked that of the tables "raw".
const (
	first = -310
	raw   = -300
)

// The names of the chains.
const (
	chainInput   = "input"   // what is for this host
	chainOther   = "other"   // datagrams of the overlay that come by another interface than the underlay's
	chainReason  = "reason"  // why a datagram is not accepted
	chainInner   = "inner"   // what comes out of the overlay device
	chainPlain   = "plain"   // what is no datagram of the overlay
	chainForward = "forward" // what this host forwards
	chainSpoof   = "spoof"   // what it forwards into the overlay
	chainEgress  = "egress"  // what it forwards to the port
	chainOutput  = "output"  // what processes of this host send
	chainToPort  = "to_port" // what leaves for the port
	chainOwn     = "own"     // what processes send to the port
	chainDefrag  = "defrag"
	chainRawIn   = "raw_in"
	chainRawOut  = "raw_out"
)

// builder makes the rules from the facts. It is pure.
type builder struct {
	*Config
	facts
}

// build returns all chains, each behind those that it names.
func (b builder) build() []chain {
	chains := []chain{b.reason(), b.inner(), b.plain(), b.spoof(), b.egress(), b.processes(), b.toPort(), b.other(), b.input(), b.forward(), b.output()}
	if slices.Contains(b.families(), ipv6) {
		chains = append(chains, b.defrag()...)
	}
	return chains
}

func base(hook, priority int) *nft.Hook {
	return &nft.Hook{Type: "filter", Number: uint32(hook), Priority: int32(priority)}
}

// input judges what is for this host. Of a superpacket, which the kernel splits later, it sees only the first datagram.
func (b builder) input() chain {
	c := chain{name: chainInput, hook: base(unix.NF_INET_LOCAL_IN, first)}
	c.goTo(chainPlain, isUDP(true))
	c.goTo(chainPlain, toPort(b.Port, true))
	c.jumpTo(chainOther, b.byUnderlay(true))
	if b.kernel || !b.Alone {
		c.add(accept, vniIs(b.VNI, true)) // another network's: it has a guard of its own, or wants none
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

func (b builder) leaseLengths(f family) []int {
	return b.lengths(func(bits int) string { return leaseSet(f, bits) }, bitsOf(f))
}

// strangers calls with the conditions under which a source is no overlay address, nor one that no packet may have.
func (b builder) strangers(f family, source field, outside func(...cond)) {
	var conds []cond
	if b.mixed {
		for _, bits := range b.leaseLengths(f) {
			conds = append(conds, in(leaseSet(f, bits), true, bits, source))
		}
		for _, own := range ofFamily(b.own, f) {
			conds = append(conds, source.within(own, true))
		}
	} else {
		for _, n := range ofFamily(b.networks, f) {
			conds = append(conds, source.within(n, true))
		}
	}
	for _, p := range never(f) {
		conds = append(conds, source.within(p, true))
	}
	outside(conds...)
}

// never are the sources that no packet of a peer has: this network, loopback, multicast and broadcast, mapped addresses.
func never(f family) []netip.Prefix {
	if f == ipv6 {
		return prefixes("::/96", "::ffff:0:0/96", "fe80::/10", "ff00::/8")
	}
	return prefixes("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3")
}

func prefixes(list ...string) (all []netip.Prefix) {
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
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

// inner judges each packet that comes out of the kernel's overlay device.
func (b builder) inner() chain {
	c := chain{name: chainInner}
	if !b.kernel {
		return c // this process has judged it
	}
	if len(b.extra) == 0 { // else this process forwards too, and what it judged has no mark
		c.drop(dataplane.DropUnknownVTEP, marked(b.Mark, true))
	}
	for _, f := range []family{ipv4, ipv6} {
		for _, own := range ofFamily(b.own, f) {
			to := []cond{of(f), outerDestination(f).within(own, false)}
			admit := func(more ...cond) { c.add(accept, slices.Concat(to, more)...) }
			b.peers(f, func(from ...cond) { admit(from...) })
			for _, bits := range b.lengths(func(bits int) string { return wideSet(f, bits) }, bitsOf(f)) {
				admit(in(wideSet(f, bits), false, bits, outerSource(f)))
			}
			if slices.Contains(b.families(), f) {
				admit(b.isPeer(f, outerSource(f), false))
			}
			if b.Check == dataplane.SourceOverlay {
				b.strangers(f, outerSource(f), func(from ...cond) { admit(from...) })
			}
		}
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

// peers calls once for each set of conditions under which a source is an overlay address that is not this host's.
func (b builder) peers(f family, are func(...cond)) {
	if b.mixed {
		for _, bits := range b.leaseLengths(f) {
			are(in(leaseSet(f, bits), false, bits, outerSource(f)))
		}
		return
	}
	for _, n := range ofFamily(b.networks, f) {
		conds := []cond{outerSource(f).within(n, false)}
		for _, own := range ofFamily(b.own, f) {
			conds = append(conds, outerSource(f).within(own, true))
		}
		are(conds...)
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
	if b.kernel {
		for _, l := range b.indices { // an index costs less than a name, which stays when a device is made again
			c.goTo(chainInner, comesByIndex(l, false))
		}
		for _, d := range b.devices() {
			c.goTo(chainInner, comesBy(d, false))
		}
	}
	if b.AllowPlain || b.settling {
		return c
	}
	c.add(back, b.byUnderlay(true))
	for _, f := range []family{ipv4, ipv6} {
		if b.Direct {
			for _, bits := range b.leaseLengths(f) {
				c.add(back, of(f), in(leaseSet(f, bits), false, bits, outerSource(f)))
			}
		}
		for _, own := range ofFamily(b.own, f) {
			c.drop(dataplane.DropPlainSource, of(f), outerSource(f).within(own, false))
		}
		if !b.mixed || !b.Direct {
			b.peers(f, func(from ...cond) { c.drop(dataplane.DropPlainSource, append([]cond{of(f)}, from...)...) })
		}
	}
	return c
}

// forward judges what this host forwards. What comes by the underlay is plain even if it goes into the overlay.
func (b builder) forward() chain {
	c := chain{name: chainForward, hook: base(unix.NF_INET_FORWARD, first)}
	from := func(from cond) {
		if b.kernel {
			c.goTo(chainInner, from)
		} else {
			c.add(accept, from)
		}
	}
	for _, l := range b.indices {
		from(comesByIndex(l, false))
	}
	c.goTo(chainPlain, b.byUnderlay(false))
	for _, l := range b.indices {
		c.goTo(chainSpoof, leavesByIndex(l))
	}
	for _, d := range b.devices() {
		from(comesBy(d, false))
		c.goTo(chainSpoof, leavesBy(d))
	}
	if b.Direct {
		c.jumpTo(chainSpoof, leavesBy(b.Underlay))
	}
	c.goTo(chainEgress, isUDP(false), toPort(b.Port, false))
	return c
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

// egress drops what pods send to the port of a VTEP. This host may be a router between two VTEPs.
func (b builder) egress() chain {
	c := chain{name: chainEgress}
	for _, f := range b.families() {
		vtep := func(d field) cond { return b.isPeer(f, d, false) }
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

// output marks what goes into the overlay: the kernel keeps the mark when it encapsulates, and so lets its datagram pass.
func (b builder) output() chain {
	c := chain{name: chainOutput, hook: base(unix.NF_INET_LOCAL_OUT, first)}
	c.goTo(chainToPort, isUDP(false), toPort(b.Port, false))
	b.marks(&c)
	return c
}

// marks marks what processes send into an overlay: of other networks too, which may send to the same VTEPs.
func (b builder) marks(c *chain) {
	if !b.noKinds {
		c.add(accept, leavesByKind("vxlan"), setMark(b.Mark))
		return
	}
	for _, d := range b.devices() {
		c.add(accept, leavesBy(d), setMark(b.Mark))
	}
}

// toPort passes what the kernel has encapsulated for pods, which is the most.
func (b builder) toPort() chain {
	c := chain{name: chainToPort}
	c.goTo(chainOwn, fromSocket())
	return c
}

// processes drops what processes send to a VTEP, or to any address in the name of this network.
func (b builder) processes() chain {
	c := chain{name: chainOwn}
	b.marks(&c) // a process sends to this port of a pod
	c.add(accept, marked(b.Mark, false))
	for _, f := range b.families() {
		c.drop(dataplane.DropEgress, of(f), b.isPeer(f, outerDestination(f), false))
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
