package control

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/overlayd/overlayd/dataplane"
)

// Underlay is what this host needs of the network below the overlay. It may lie inside the overlay
// network: each subnet has a route of its own then. Only a subnet that takes a needed address away
// cannot work.
type Underlay struct {
	Needs  []Need
	OnLink []netip.Prefix // what the underlay interface reaches without a gateway; masked
	Links  []Link         // of other interfaces: no subnet may cover one
	Locals []netip.Addr   // all addresses of this host, sorted: no peer has one of them
	// Public are the prefixes in which peers publish their addresses; none: they may publish any.
	Public []netip.Prefix
}

// Equal reports whether both say the same.
func (u Underlay) Equal(v Underlay) bool {
	return slices.Equal(u.Needs, v.Needs) && slices.Equal(u.OnLink, v.OnLink) && slices.Equal(u.Links, v.Links) &&
		slices.Equal(u.Locals, v.Locals) && slices.Equal(u.Public, v.Public)
}

// Link is a prefix that has the hosts of one link of this host.
type Link struct {
	Prefix netip.Prefix // masked
	Name   string       // of the interface
}

// String returns the prefix and the interface.
func (l Link) String() string { return l.Prefix.String() + ", a local link of " + l.Name }

// Need is an address that is reached without the overlay.
type Need struct {
	Addr netip.Addr
	What string // for messages, such as "the default gateway"
	// Yields: a lease may hold it, and it is an overlay address then.
	Yields bool
	Own    bool         // it is this host's
	Route  netip.Prefix // of the most specific route that leads there without the overlay; not valid if it is not known
}

// String returns the address and what it is.
func (n Need) String() string { return fmt.Sprintf("%s, %s", n.Addr, n.What) }

// blocks returns the need that a route to s would take away.
func (u *Underlay) blocks(s netip.Prefix) (Need, bool) {
	for _, n := range u.Needs {
		if !n.Yields && s.Contains(n.Addr) && !u.stays(n, s) {
			return n, true
		}
	}
	return Need{}, false
}

// stays reports whether packets to n, an address of s, stay on the underlay beside a route to s.
func (u *Underlay) stays(n Need, s netip.Prefix) bool {
	return n.Route.Bits() > s.Bits() || u.keeps(n.Addr, s)
}

// covered returns the link that lies in s.
func (u *Underlay) covered(s netip.Prefix) (Link, bool) {
	for _, l := range u.Links {
		if s.Bits() <= l.Prefix.Bits() && s.Contains(l.Prefix.Addr()) {
			return l, true
		}
	}
	return Link{}, false
}

// isOwn reports whether an address is this host's.
func (u *Underlay) isOwn(a netip.Addr) bool {
	_, local := slices.BinarySearchFunc(u.Locals, a, netip.Addr.Compare)
	return local || slices.ContainsFunc(u.Needs, func(n Need) bool { return n.Own && n.Addr == a })
}

// isPublic reports whether a peer may publish an address.
func (u *Underlay) isPublic(a netip.Addr) bool {
	return len(u.Public) == 0 || slices.ContainsFunc(u.Public, func(p netip.Prefix) bool { return p.Contains(a) })
}

// broadcasts returns the prefix of a link of this host of which an address is the first or the last one: what is sent there goes to
// all hosts, or to none (RFC 1122 section 3.2.1.3).
func (u *Underlay) broadcasts(a netip.Addr) (p netip.Prefix, ok bool) {
	if i := slices.IndexFunc(u.OnLink, func(p netip.Prefix) bool { return isEdge(p, a) }); i >= 0 {
		return u.OnLink[i], true
	}
	if i := slices.IndexFunc(u.Links, func(l Link) bool { return isEdge(l.Prefix, a) }); i >= 0 {
		return u.Links[i].Prefix, true
	}
	return p, false
}

// isEdge reports whether a is the first or the last address of p. Prefixes of two addresses or one have neither (RFC 3021), nor
// has IPv6.
func isEdge(p netip.Prefix, a netip.Addr) bool {
	if !a.Is4() || p.Bits() > 30 || !p.Contains(a) {
		return false
	}
	host := uint32(1)<<(32-p.Bits()) - 1
	b := a.As4()
	at := binary.BigEndian.Uint32(b[:]) & host
	return at == 0 || at == host
}

// keeps reports whether packets to a, an address of s, stay on the underlay beside a route to s: the
// route to an on-link prefix that is longer wins.
func (u *Underlay) keeps(a netip.Addr, s netip.Prefix) bool {
	return slices.ContainsFunc(u.OnLink, func(p netip.Prefix) bool { return p.Bits() > s.Bits() && p.Contains(a) })
}

// held returns what a subnet of that length cannot have: needed addresses, and links of other interfaces.
func (u *Underlay) held(length int) (out []netip.Prefix) {
	for _, n := range u.Needs {
		if s, err := n.Addr.Prefix(min(length, n.Addr.BitLen())); err == nil && !u.stays(n, s) {
			out = append(out, single(n.Addr))
		}
	}
	for _, l := range u.Links {
		if l.Prefix.Bits() >= length {
			out = append(out, l.Prefix)
		}
	}
	return out
}

// shared returns where hosts may be that nobody here knows: on-link prefixes that can have several subnets.
func (u *Underlay) shared() []netip.Prefix {
	all := slices.Clone(u.OnLink)
	for _, l := range u.Links {
		all = append(all, l.Prefix)
	}
	return all
}

// text names what the host needs, for a message.
func (u *Underlay) text() string {
	var all []string
	for _, n := range u.Needs {
		all = append(all, n.String())
	}
	for _, l := range u.Links {
		all = append(all, l.String())
	}
	return strings.Join(all, "; ")
}

// Inside returns the addresses and on-link prefixes of the host, and the addresses of its peers, that lie in one of the networks.
func (u *Underlay) Inside(networks []netip.Prefix, peers []dataplane.Peer) (out []netip.Prefix) {
	add := func(p netip.Prefix) {
		if slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Bits() <= p.Bits() && n.Contains(p.Addr()) }) {
			out = append(out, p)
		}
	}
	for _, p := range u.OnLink {
		add(p)
	}
	for _, n := range u.Needs {
		add(single(n.Addr))
	}
	for _, p := range peers {
		add(single(p.Addr))
	}
	return out
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// CheckSubnets returns why the node cannot have these subnets: the first one that holds an address
// which the node needs of the underlay, or a link. Invalid ones are skipped. The bridge of the node's pods is not such a link: it
// lies in a subnet that the node had, or is all of it. Nor does the node need an address behind it.
func (n *Node) CheckSubnets(subnets ...netip.Prefix) error {
	for _, s := range subnets {
		if !s.IsValid() {
			continue
		}
		if slices.ContainsFunc(n.Underlay.Links, func(l Link) bool { return l.Prefix == s }) {
			continue
		}
		if need, ok := n.Underlay.blocks(s); ok {
			return refuse(reasonHoldsUnderlay, "subnet %s holds %s", s, need)
		}
		if l, ok := n.Underlay.covered(s); ok && !n.had(s) {
			return refuse(reasonHoldsUnderlay, "subnet %s covers %s", s, l)
		}
	}
	return nil
}

// AppendPublic appends to taken, alone, the public IPs that the value of a lease names, as far as
// they are inside n: no subnet must hold them. A value that is not spelled as flannel and overlayd
// do is passed over: to parse every value would be most of the work of an allocation.
func AppendPublic(taken []netip.Prefix, n Network, value []byte) []netip.Prefix {
	value = value[:min(len(value), maxPublic)]
	for _, field := range [...]string{`"PublicIP":"`, `"PublicIPv6":"`} {
		_, after, found := bytes.Cut(value, []byte(field))
		ip, _, closed := bytes.Cut(after, []byte{'"'})
		if !found || !closed {
			continue
		}
		if a, err := netip.ParseAddr(string(ip)); err == nil && n.Contains(single(a)) {
			taken = append(taken, single(a))
		}
	}
	return taken
}

// maxPublic bounds how far AppendPublic looks, in bytes: both addresses come first.
const maxPublic = 128
