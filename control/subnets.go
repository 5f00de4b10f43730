package control

import (
	"encoding/binary"
	"net/netip"
)

// Prefixes returns the overlay networks, one per enabled family.
func (n Network) Prefixes() []netip.Prefix {
	var p []netip.Prefix
	if n.EnableIPv4 {
		p = append(p, n.Network)
	}
	if n.EnableIPv6 {
		p = append(p, n.IPv6Network)
	}
	return p
}

// ipv4 and ipv6 return the part of n that concerns one family, and whether it is enabled.
func (n Network) ipv4() (subnetRange, bool) {
	return subnetRange{n.Network, n.SubnetLen, n.SubnetMin, n.SubnetMax}, n.EnableIPv4
}

func (n Network) ipv6() (subnetRange, bool) {
	return subnetRange{n.IPv6Network, n.IPv6SubnetLen, n.IPv6SubnetMin, n.IPv6SubnetMax}, n.EnableIPv6
}

// Contains reports whether p can be a subnet of the network: strictly inside it, in
// a family that is enabled. A prefix that cannot is neither used nor avoided by anybody. If
// others give out the subnets (ParsePodNetwork), one may be the whole network.
func (n Network) Contains(p netip.Prefix) bool {
	r, on := n.family(p)
	return on && r.contains(p)
}

// family returns the part of n that concerns p's family.
func (n Network) family(p netip.Prefix) (subnetRange, bool) {
	if p.Addr().Is6() {
		return n.ipv6()
	}
	return n.ipv4()
}

// contains is Network.Contains for one family.
func (r subnetRange) contains(p netip.Prefix) bool {
	longer := p.Bits() > r.network.Bits() || r.length == 0 && p.Bits() == r.network.Bits()
	return p.IsValid() && longer && r.network.Contains(p.Addr())
}

// count returns how many subnets the whole network has: at most 2^maxIndexBits.
func (r subnetRange) count() uint64 { return 1 << (r.length - r.network.Bits()) }

// holds reports whether p is one of the subnets that may be leased.
func (r subnetRange) holds(p netip.Prefix) bool {
	if r.length == 0 {
		return r.contains(p) && p == p.Masked()
	}
	return r.contains(p) && p == p.Masked() && p.Bits() == r.length &&
		r.min.Compare(p.Addr()) <= 0 && p.Addr().Compare(r.max) <= 0
}

// index returns the number, within the network, of the subnet that holds a,
// which is in the network. The lowest subnet has number 0.
func (r subnetRange) index(a netip.Addr) uint64 {
	hi, lo := words(a)
	_, lo = shiftRight(hi, lo, uint(a.BitLen()-r.length))
	return lo & (r.count() - 1)
}

// subnetAt returns the subnet with number i: the inverse of index.
func (r subnetRange) subnetAt(i uint64) netip.Prefix {
	size := r.network.Addr().BitLen()
	hi, lo := words(r.network.Addr())
	ihi, ilo := shiftLeft(0, i, uint(size-r.length))
	hi, lo = hi|ihi, lo|ilo
	if size == 32 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(lo)))), r.length)
	}
	b := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, hi), lo)
	return netip.PrefixFrom(netip.AddrFrom16([16]byte(b)), r.length)
}

// words returns an address as a 128-bit number.
func words(a netip.Addr) (hi, lo uint64) {
	if a.Is4() {
		b := a.As4()
		return 0, uint64(binary.BigEndian.Uint32(b[:]))
	}
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

// shiftRight and shiftLeft shift a 128-bit number; Go defines a shift by the
// word's size or more as zero, which makes the two halves meet at n = 64.
func shiftRight(hi, lo uint64, n uint) (uint64, uint64) {
	if n >= 64 {
		return 0, hi >> (n - 64)
	}
	return hi >> n, lo>>n | hi<<(64-n)
}

func shiftLeft(hi, lo uint64, n uint) (uint64, uint64) {
	if n >= 64 {
		return lo << (n - 64), 0
	}
	return hi<<n | lo>>(64-n), lo << n
}

// indexRange returns the numbers of the first and last subnet that may be leased.
func (r subnetRange) indexRange() (first, last uint64) { return r.index(r.min), r.index(r.max) }
