package encap

import (
	"encoding/binary"
	"net/netip"
)

// MaxOuterLen is the length of the longest outer headers, Ethernet included, in bytes.
const MaxOuterLen = EthernetLen + outerIPv6Len + outerUDPLen

const udpLenOff = 4

// Outer is the Ethernet, IP and UDP header in front of VXLAN, from this host to one VTEP, for whoever writes
// frames instead of using sockets. The Ethernet addresses are zero: whoever forwards the frame fills them in.
//
//	+-------------+--------------------+---------+----------------
//	| Ethernet 14 | IPv4 20 or IPv6 40 | UDP 8   | VXLAN, ...
//	+-------------+--------------------+---------+----------------
type Outer struct {
	header [MaxOuterLen]byte
	n      int    // of header
	ipSum  uint64 // of an IPv4 header without length, ID, ECN and checksum
	pseudo uint64 // of the pseudo-header without length
}

// OuterFields are what differs from one packet to the next.
type OuterFields struct {
	Port uint16 // source port
	ID   uint16 // of IPv4: that of the first segment, the kernel counts on
	ECN  ECN
}

// NewOuter returns the headers from an address to a port of another one of the same family. ttl is the TTL or hop
// limit, and df says that an IPv4 packet must not be fragmented.
func NewOuter(src netip.Addr, dst netip.AddrPort, ttl uint8, df bool) Outer {
	var o Outer
	ip := o.header[EthernetLen:]
	if src.Is4() {
		binary.BigEndian.PutUint16(o.header[12:], EtherTypeIPv4)
		ip[0], ip[8], ip[9] = 0x45, ttl, ProtoUDP
		if df {
			binary.BigEndian.PutUint16(ip[6:], ipv4DontFragment)
		}
		copy(ip[12:], src.AsSlice())
		copy(ip[16:], dst.Addr().AsSlice())
		o.n = EthernetLen + outerIPv4Len + outerUDPLen
		o.ipSum = uint64(ipv4Sum(ip))
	} else {
		binary.BigEndian.PutUint16(o.header[12:], EtherTypeIPv6)
		ip[0], ip[6], ip[7] = 0x60, ProtoUDP, ttl
		copy(ip[8:], src.AsSlice())
		copy(ip[24:], dst.Addr().AsSlice())
		o.n = EthernetLen + outerIPv6Len + outerUDPLen
	}
	o.pseudo = uint64(pseudoSum(ip, ProtoUDP, 0))
	binary.BigEndian.PutUint16(o.header[o.n-outerUDPLen+2:], dst.Port())
	return o
}

// Len returns the length of the headers, in bytes.
func (o *Outer) Len() int { return o.n }

// UDP returns the offset of the UDP header.
func (o *Outer) UDP() int { return o.n - outerUDPLen }

// Put writes the headers of a datagram with n bytes behind the UDP header to b[:Len()]. The UDP checksum is
// partial: the field has the folded pseudo-header sum. With headers, n must not be more than an IP packet holds.
func (o *Outer) Put(b []byte, n int, f OuterFields) {
	b = b[:o.n]
	copy(b, o.header[:])
	ip, udp := b[EthernetLen:o.n-outerUDPLen], b[o.n-outerUDPLen:]
	length := outerUDPLen + n
	if len(ip) == outerIPv4Len {
		total := len(ip) + length
		ip[1] = byte(f.ECN)
		binary.BigEndian.PutUint16(ip[2:], uint16(total))
		binary.BigEndian.PutUint16(ip[4:], f.ID)
		binary.BigEndian.PutUint16(ip[10:], ^Fold(o.ipSum+uint64(f.ECN)+uint64(total)+uint64(f.ID)))
	} else {
		binary.BigEndian.PutUint32(ip, 6<<28|uint32(f.ECN)<<20)
		binary.BigEndian.PutUint16(ip[4:], uint16(length))
	}
	binary.BigEndian.PutUint16(udp, f.Port)
	binary.BigEndian.PutUint16(udp[udpLenOff:], uint16(length))
	binary.BigEndian.PutUint16(udp[udpChecksumOff:], Fold(o.pseudo+uint64(length)))
}
