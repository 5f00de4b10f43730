package userspace

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
)

// ownPrefix is where packets to this host may go.
type ownPrefix struct {
	netip.Prefix
	broadcast netip.Addr // the last address of an IPv4 subnet, which is nobody's; not valid if the prefix has none
}

// block4 is an IPv4 prefix without its broadcast address, in numbers because that is 5 ns faster. The zero value holds
// nothing.
type block4 struct{ first, count uint32 }

func newBlock4(p netip.Prefix) block4 {
	b := block4{first: number4(p.Masked().Addr()), count: ^uint32(0) >> p.Bits()} // count: all but the last
	if p.Bits() > 30 {
		b.count++ // that has no broadcast address
	}
	return b
}

// holds reports whether an IPv4 address, as a number, is in the block.
func (b *block4) holds(n uint32) bool { return n-b.first < b.count }

func number4(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

// sources are the addresses that both directions are checked by. It is a part of the forwarding, and as
// immutable.
type sources struct {
	own     []ownPrefix    // the subnets of this host, and its further addresses
	own4    block4         // the first IPv4 one of them, for which almost all packets are
	overlay []netip.Prefix // networks of which every address is the overlay's
	anyFrom []netip.Prefix // see Config.AnyPeerFrom
	locals  []netip.Addr   // of this host's VTEPs
	outside bool           // a known VTEP may also send what has a source outside of the overlay
	off     bool           // no source is checked
	nobody  *carrier.Peer  // whose a packet is of which nobody knows whose it is, if that is taken
}

// newSources makes those for SourceStrict.
func newSources(locals *[carrier.Families]local, w dataplane.Wanted) sources {
	s := sources{own: ownPrefixes(w), overlay: overlayNetworks(w), nobody: carrier.NewPeer(netip.AddrPort{})}
	if i := slices.IndexFunc(s.own, func(o ownPrefix) bool { return o.Addr().Is4() }); i >= 0 {
		s.own4 = newBlock4(s.own[i].Prefix)
	}
	for _, l := range locals {
		for _, a := range []netip.Addr{l.addr, l.public} {
			if a.IsValid() {
				s.locals = append(s.locals, a)
			}
		}
	}
	return s
}

// set sets how sources are checked.
func (s *sources) set(check dataplane.SourceCheck, anyFrom []netip.Prefix) {
	switch check {
	case dataplane.SourceOverlay:
		s.outside = true
	case dataplane.SourceInner:
		s.anyFrom = anyFrom
	case dataplane.SourceOff:
		s.off = true
	}
}

// isOwn reports whether a packet from the underlay may go to dst. All else is somebody
// else's: this host must not relay it, nor take it for itself.
func (s *sources) isOwn(dst netip.Addr) bool {
	if dst.Is4() && s.own4.holds(number4(dst)) {
		return true
	}
	return s.isOwnSlow(dst)
}

// isOwnSlow is isOwn by itself.
func (s *sources) isOwnSlow(dst netip.Addr) bool {
	for i := range s.own {
		if o := &s.own[i]; o.Contains(dst) {
			return dst != o.broadcast
		}
	}
	return false
}

// isAnyPeer reports whether any peer's packets may have that outer source. No other than a peer's own may be an address of the overlay or of this host: pods and processes
// would have it.
func (f *forwarding) isAnyPeer(from netip.Addr) bool {
	return f.off || contain(f.anyFrom, from) && (f.vteps.Lookup(from) != nil || !f.isInside(from))
}

// isInside reports whether an address is the overlay's or this host's.
func (f *forwarding) isInside(a netip.Addr) bool {
	return contain(f.overlay, a) || f.subnets.Lookup(a) != nil || slices.Contains(f.locals, a) || slices.ContainsFunc(f.own, func(o ownPrefix) bool { return o.Contains(a) })
}

// sender returns whose packet it is that has the inner source src and came from vtep, or from a source that
// several VTEPs may have if that is nil. It returns nil if the packet must not have that source.
func (f *forwarding) sender(vtep *carrier.Entry, src netip.Addr) *carrier.Peer {
	// Peers are compared and not entries: a VTEP has an entry for each of its leases.
	owner := f.subnets.Lookup(src)
	if owner != nil && (vtep == nil || owner.Peer == vtep.Peer) {
		return owner.Peer
	}
	return f.rareSender(vtep, owner, src)
}

// rareSender is sender for a source that is not in the subnets of the VTEP.
func (f *forwarding) rareSender(vtep, owner *carrier.Entry, src netip.Addr) *carrier.Peer {
	switch {
	case f.off && vtep != nil:
		return vtep.Peer
	case f.off:
		return f.nobody
	case vtep == nil || owner != nil || f.isOwn(src):
		return nil
	case f.outside && f.isOutside(src):
		return vtep.Peer
	}
	if node := f.vteps.Lookup(src); node != nil && node.Peer == vtep.Peer { // the host itself, by its underlay address
		return vtep.Peer
	}
	return nil
}

// otherSender is sender for what comes from the address of a VTEP, and is not that VTEP's: another one may be behind the same address.
func (f *forwarding) otherSender(from, src netip.Addr) *carrier.Peer {
	if !f.isAnyPeer(from) {
		return nil
	}
	return f.sender(nil, src)
}

// maySend reports whether a packet of this host with that source may leave: it is its own, or not the
// overlay's. A pod that takes the address of another one is stopped here.
func (f *forwarding) maySend(src netip.Addr) bool {
	return f.isOwn(src) || f.off || isSource(src) && f.subnets.Lookup(src) == nil && !contain(f.overlay, src)
}

// isOutside reports whether src is the address of a host that has nothing to do with the overlay: no VTEP, no
// address of it, and not this host.
func (f *forwarding) isOutside(src netip.Addr) bool {
	return isSource(src) && !contain(f.overlay, src) && f.vteps.Lookup(src) == nil && !slices.Contains(f.locals, src)
}

// isSource reports whether an address may be the source of a packet that crosses a router.
func isSource(a netip.Addr) bool {
	if a.Is4() && (a.As4()[0] == 0 || a.As4()[0] >= 240) { // this network, and what is reserved (RFC 6890); broadcast
		return false
	}
	compatible := netip.PrefixFrom(netip.IPv6Unspecified(), 96) // with an address of IPv4 (RFC 4291 section 2.5.5.1), and that of nobody
	return a.IsValid() && !compatible.Contains(a) && !a.Is4In6() && !a.IsLoopback() && !a.IsMulticast() && !a.IsLinkLocalUnicast()
}

func contain(ps []netip.Prefix, a netip.Addr) bool {
	for i := range ps {
		if ps[i].Contains(a) {
			return true
		}
	}
	return false
}

// ownPrefixes returns the subnets of this host, and those of its further addresses that lie
// outside.
func ownPrefixes(w dataplane.Wanted) (own []ownPrefix) {
	for _, s := range w.Subnets {
		own = append(own, ownPrefix{s, broadcastOf(s)})
	}
	for _, a := range w.Addrs {
		if !slices.ContainsFunc(own, func(p ownPrefix) bool { return p.Contains(a.Addr()) }) {
			own = append(own, ownPrefix{Prefix: netip.PrefixFrom(a.Addr(), a.Addr().BitLen())})
		}
	}
	return own
}

// broadcastOf returns the directed broadcast address of a subnet (RFC 919), invalid if it has none (RFC 3021).
func broadcastOf(s netip.Prefix) netip.Addr {
	if !s.Addr().Is4() || s.Bits() > 30 {
		return netip.Addr{}
	}
	b := s.Masked().Addr().As4()
	for i := s.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}

// overlayNetworks returns those of w.Networks that hold nothing of the underlay. In the others only leases
// are the overlay's.
func overlayNetworks(w dataplane.Wanted) (all []netip.Prefix) {
	for _, n := range w.Networks {
		published := func(p dataplane.Peer) bool { return n.Contains(p.Addr) || n.Contains(p.Source) }
		if !slices.ContainsFunc(w.Underlay, n.Overlaps) && !slices.ContainsFunc(w.Peers, published) {
			all = append(all, n)
		}
	}
	return all
}
