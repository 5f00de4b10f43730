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
}

// Equal reports whether both say the same.
func (u Underlay) Equal(v Underlay) bool {
	return slices.Equal(u.Needs, v.Needs) && slices.Equal(u.OnLink, v.OnLink)
}

// Need is an address that is reached without the overlay.
type Need struct {
	Addr netip.Addr
	What string // for messages, such as "the default gateway"
	// Yields: a lease may hold it, and it is an overlay address then: a name server may be a pod.
	Yields bool
	Own    bool // it is this host's
}

// String returns the address and what it is.
func (n Need) String() string { return fmt.Sprintf("%s, %s", n.Addr, n.What) }

// blocks returns the need that a route to s would take away.
func (u *Underlay) blocks(s netip.Prefix) (Need, bool) {
	for _, n := range u.Needs {
		if !n.Yields && s.Contains(n.Addr) && !u.keeps(n.Addr, s) {
			return n, true
		}
	}
	return Need{}, false
}

// isOwn reports whether an address is this host's.
func (u *Underlay) isOwn(a netip.Addr) bool {
	return slices.ContainsFunc(u.Needs, func(n Need) bool { return n.Own && n.Addr == a })
}

// broadcasts returns the on-link prefix of which an address is the first or the last one: what is sent there goes to all hosts, or to
// none (RFC 1122 section 3.2.1.3). Prefixes of two addresses or one have neither (RFC 3021), nor has IPv6.
func (u *Underlay) broadcasts(a netip.Addr) (p netip.Prefix, ok bool) {
	i := slices.IndexFunc(u.OnLink, func(p netip.Prefix) bool {
		if !a.Is4() || p.Bits() > 30 || !p.Contains(a) {
			return false
		}
		host := uint32(1)<<(32-p.Bits()) - 1
		b := a.As4()
		at := binary.BigEndian.Uint32(b[:]) & host
		return at == 0 || at == host
	})
	if i < 0 {
		return p, false
	}
	return u.OnLink[i], true
}

// keeps reports whether packets to a, an address of s, stay on the underlay beside a route to s: the
// route to an on-link prefix that is longer wins.
func (u *Underlay) keeps(a netip.Addr, s netip.Prefix) bool {
	return slices.ContainsFunc(u.OnLink, func(p netip.Prefix) bool { return p.Bits() > s.Bits() && p.Contains(a) })
}

// addrs returns the needed addresses that a subnet of that length cannot have.
func (u *Underlay) addrs(length int) (out []netip.Prefix) {
	for _, n := range u.Needs {
		if s, err := n.Addr.Prefix(min(length, n.Addr.BitLen())); err == nil && !u.keeps(n.Addr, s) {
			out = append(out, single(n.Addr))
		}
	}
	return out
}

// text names what the host needs, for a message.
func (u *Underlay) text() string {
	var all []string
	for _, n := range u.Needs {
		all = append(all, n.String())
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
// which the node needs of the underlay. Invalid ones are skipped.
func (n *Node) CheckSubnets(subnets ...netip.Prefix) error {
	for _, s := range subnets {
		if need, ok := n.Underlay.blocks(s); s.IsValid() && ok {
			return refuse(reasonHoldsUnderlay, "subnet %s holds %s", s, need)
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
