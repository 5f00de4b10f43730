package encap

import (
	"encoding/binary"
	"net/netip"
)

// MaxTooBig is the length in bytes of the longest packet that PutTooBig writes: the
// least MTU of IPv6 (RFC 4443 section 2.4 (c)). Over IPv4 it is 576 bytes (RFC
// 1812 section 4.3.2.3).
const MaxTooBig = 1280

const (
	maxTooBig4 = 576
	minMTU4    = 68 // RFC 791 section 3.2
	icmpLen    = 8

	protoICMP   = 1
	protoICMPv6 = 58

	icmpUnreachable = 3 // RFC 792
	icmpFragNeeded  = 4 // RFC 792, RFC 1191 section 4
	icmpv6TooBig    = 2 // RFC 4443 section 3.2
	icmpv6Redirect  = 137
)

// PutTooBig writes to dst, which has room for MaxTooBig bytes and else panics, the
// packet that tells the sender of the packet b, which ParseIP read into ip, to
// send nothing longer than mtu bytes to where b went: ICMP "fragmentation needed"
// (RFC 1191) or ICMPv6 "packet too big" (RFC 4443 section 3.2). It comes from the
// address from, which has the IP version of b, and quotes as much of b as may be.
//
// The length n is 0 if there must be no answer (RFC 1122 section 3.2.2, RFC
// 1812 section 4.3.2.7, RFC 4443 section 2.4 (e)): to an ICMP error, a later
// fragment, a packet that is not from and to one host, or one that may be
// fragmented on its way. How often to answer is for the caller to limit. An mtu
// below the least that the IP version allows is replaced by that.
func PutTooBig(dst, b []byte, ip *IP, from netip.Addr, mtu int) (n int) {
	if !answerable(b, ip) {
		return 0
	}
	b = b[:ip.Len]
	switch {
	case ip.Version == 4 && from.Is4():
		return putFragNeeded(dst, b, from.As4(), mtu)
	case ip.Version == 6 && from.Is6() && !from.Is4In6():
		return putTooBig6(dst, b, from.As16(), mtu)
	}
	return 0
}

// answerable reports whether an ICMP error may be sent because of b.
func answerable(b []byte, ip *IP) bool {
	switch {
	case !ip.First || !isHost(ip.Src) || !isHost(ip.Dst):
		return false
	case ip.Version == 4 && binary.BigEndian.Uint16(b[6:8])&ipv4DontFragment == 0:
		return false
	}
	l4 := b[ip.HeaderLen:ip.Len]
	switch ip.Proto {
	case protoICMP:
		return len(l4) > 0 && !isICMPError(l4[0])
	case protoICMPv6:
		return len(l4) > 0 && l4[0] >= 128 && l4[0] != icmpv6Redirect
	}
	// If the walk over extension headers stopped, an error may follow it.
	return ip.Version == 4 || !isExtension(ip.Proto)
}

// isHost reports whether addr can be the address of one host.
func isHost(addr netip.Addr) bool {
	if addr.Is4() && addr.As4()[0] >= 240 {
		return false // RFC 1112 section 4, broadcast included
	}
	return !addr.IsUnspecified() && !addr.IsMulticast() && !addr.IsLoopback()
}

// isICMPError tells the ICMP types that report on a packet (RFC 1122 section 3.2.2)
// from the queries, and takes what is unknown for an error.
func isICMPError(t uint8) bool {
	switch t {
	case 0, 8, 9, 10, 13, 14, 15, 16, 17, 18, 42, 43: // RFC 792, 950, 1256, 8335
		return false
	}
	return true
}

// putFragNeeded writes, behind the IPv4 header:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Type = 3    |   Code = 4    |           Checksum            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|           unused = 0          |         Next-Hop MTU          |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|      Internet Header + 64 bits of Original Datagram Data      |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
func putFragNeeded(dst, b []byte, from [4]byte, mtu int) int {
	const headers = ipv4MinLen + icmpLen
	n := headers + min(len(b), maxTooBig4-headers)
	dst = dst[:n]
	icmp := dst[ipv4MinLen:]

	copy(icmp[icmpLen:], b)
	icmp[0], icmp[1] = icmpUnreachable, icmpFragNeeded
	binary.BigEndian.PutUint32(icmp[2:6], 0)
	binary.BigEndian.PutUint16(icmp[6:8], uint16(min(max(mtu, minMTU4), 0xffff)))
	const control = 0xc0 // internetwork control, RFC 1812 section 4.3.2.5
	putICMP4(dst, control, from, [4]byte(b[12:16]))
	return n
}

// putICMP4 makes all of b an ICMP message, of which what follows the checksum is there and the checksum is 0.
func putICMP4(b []byte, tos uint8, from, to [4]byte) {
	h, icmp := b[:ipv4MinLen], b[ipv4MinLen:]
	h[0], h[1] = 0x45, tos
	binary.BigEndian.PutUint16(h[2:4], uint16(len(b)))
	binary.BigEndian.PutUint32(h[4:8], ipv4DontFragment) // ID 0: never fragmented, RFC 6864
	binary.BigEndian.PutUint32(h[8:12], 64<<24|protoICMP<<16)
	copy(h[12:16], from[:])
	copy(h[16:20], to[:])
	binary.BigEndian.PutUint16(h[10:12], ^ipv4Sum(h))
	binary.BigEndian.PutUint16(icmp[2:4], ^Sum(icmp, 0))
}

// putTooBig6 writes, behind the IPv6 header:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Type = 2    |   Code = 0    |           Checksum            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                             MTU                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|  As much of invoking packet as possible without exceeding the |
//	+              minimum IPv6 MTU                                 +
func putTooBig6(dst, b []byte, from [16]byte, mtu int) int {
	const headers = ipv6Len + icmpLen
	n := headers + min(len(b), MaxTooBig-headers)
	dst = dst[:n]
	icmp := dst[ipv6Len:]

	copy(icmp[icmpLen:], b)
	icmp[0], icmp[1] = icmpv6TooBig, 0
	binary.BigEndian.PutUint16(icmp[2:4], 0)
	binary.BigEndian.PutUint32(icmp[4:8], uint32(max(mtu, MaxTooBig)))
	putICMP6(dst, from, [16]byte(b[8:24]))
	return n
}

// putICMP6 is putICMP4 for ICMPv6.
func putICMP6(b []byte, from, to [16]byte) {
	h, icmp := b[:ipv6Len], b[ipv6Len:]
	binary.BigEndian.PutUint32(h[0:4], 6<<28)
	binary.BigEndian.PutUint16(h[4:6], uint16(len(icmp)))
	h[6], h[7] = protoICMPv6, 64
	copy(h[8:24], from[:])
	copy(h[24:40], to[:])
	binary.BigEndian.PutUint16(icmp[2:4], ^Sum(icmp, pseudoSum(h, protoICMPv6, len(icmp))))
}
