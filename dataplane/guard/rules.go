package guard

import (
	"net/netip"
	"slices"
)

// The priorities of base chains: before what others have, for what is not to be tracked that of the tables "raw", and for what leaves behind the
// translation of sources.
const (
	first     = -310
	raw       = -300
	behindNAT = 110
)

// The names of the chains.
const (
	chainArrive    = "arrive"    // all that comes, if the kernel forwards
	chainInput     = "input"     // what is for this host, if this process forwards
	chainDatagrams = "datagrams" // datagrams to the port
	chainOther     = "other"     // those of them that come by another interface than the underlay's
	chainStray     = "stray"     // those of other VNIs
	chainReason    = "reason"    // why a datagram is not accepted
	chainUsual     = "usual"     // what comes out of the overlay device: most of it
	chainInner     = "inner"     // the rest of that
	chainNested    = "nested"    // what of that is for the port of this host
	chainAdmitted  = "admitted"  // what of that is admitted
	chainHere      = "here"      // what else comes
	chainForeign   = "foreign"   // what of that has a secmark
	chainPlain     = "plain"     // what of that comes by the underlay
	chainPods      = "pods"      // what of that comes by other interfaces
	chainAstray    = "astray"    // what of that has an overlay address from elsewhere
	chainForward   = "forward"   // what this host forwards
	chainDisguised = "disguised" // what of that may become a datagram of the overlay
	chainSpoof     = "spoof"     // what it forwards into the overlay
	chainEgress    = "egress"    // what it forwards to the port
	chainLeave     = "leave"     // what leaves this host
	chainSenders   = "senders"   // what of that processes send over IPv6
	chainSentOn    = "sent_on"   // what of that came out of the overlay, and IPVS sends on
	chainToPort    = "to_port"   // what leaves for the port
	chainOwn       = "own"       // what processes send to the port
	chainDefrag    = "defrag"
	chainRawIn     = "raw_in"
	chainRawOut    = "raw_out"
)

// builder makes the rules from the facts. It is pure.
type builder struct {
	*Config
	facts
}

// build returns all chains, each behind those that it names.
func (b builder) build() []chain {
	if b.shut {
		return b.shutChains()
	}
	chains := []chain{b.reason(), b.nested(), b.admitted(), b.inner(), b.usualInner(), b.plain(), b.astray(), b.pods(), b.foreign(), b.here(), b.disguised(), b.spoof(), b.egress(), b.processes(), b.toPort(), b.sentOn(), b.senders(), b.other(), b.stray(), b.datagrams(), b.forward(), b.leave()}
	if b.kernel {
		chains = append(chains, b.arrive())
	} else { // what this process forwards it has judged
		chains = append(chains, b.input())
	}
	if slices.Contains(b.families(), ipv6) {
		chains = append(chains, b.defrag()...)
	}
	return chains
}

func (b builder) leaseLengths(f family) []int {
	return b.lengths(func(bits int) string { return leaseSet(f, bits) }, bitsOf(f))
}

// strangers returns the conditions under which a source is no overlay address, nor a VTEP's or this host's, nor one that no packet may have. The
// userspace dataplane has the same.
func (b builder) strangers(f family, source field) (conds []cond) {
	if b.mixed(f) {
		for _, set := range []func(family, int) string{leaseSet, wideSet} {
			for _, bits := range b.lengths(func(bits int) string { return set(f, bits) }, bitsOf(f)) {
				conds = append(conds, in(set(f, bits), true, bits, source))
			}
		}
	}
	if slices.Contains(b.families(), f) {
		conds = append(conds, isPeer(f, source, true))
	}
	for _, p := range b.inside(f, never(f)...) {
		conds = append(conds, source.within(p, true))
	}
	return conds
}

// inside returns the prefixes of the overlay and of this host, and more: none that is in one before it. Of a network over the underlay that is only this host's subnets.
func (b builder) inside(f family, more ...netip.Prefix) (all []netip.Prefix) {
	list := slices.Concat(ofFamily(b.own, f), b.local(f), more)
	if !b.mixed(f) {
		list = slices.Concat(ofFamily(b.networks, f), list)
	}
	for i, p := range list {
		if !slices.ContainsFunc(list[:i], func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) }) {
			all = append(all, p)
		}
	}
	return all
}

// never are the sources that no packet of a peer has: this network, loopback, link, multicast, what is reserved, and broadcast; of IPv6 none, and those of IPv4 that are mapped or compatible, too.
func never(f family) []netip.Prefix {
	if f == ipv6 {
		return prefixes("::/96", "::ffff:0:0/96", "fe80::/10", "ff00::/8")
	}
	return prefixes("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3")
}

func prefixes(list ...string) (all []netip.Prefix) {
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

// peers calls once for each set of conditions under which a source is an overlay address that is not this host's.
func (b builder) peers(f family, are func(...cond)) {
	if b.mixed(f) {
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
