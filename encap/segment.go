package encap

import (
	"bytes"
	"encoding/binary"
)

const (
	tcpACK = 0x10

	ipv4DontFragment = 0x4000
)

// flowKey tells flows apart, exactly.
type flowKey struct {
	ports    uint32
	version  uint8
	proto    uint8
	src, dst [2]uint64 // of IPv4 both are in the first word
}

// parse makes k the flow of the packet b that ParseIP read into ip. It reports false
// if b has no TCP or UDP ports: for a fragment k.ports is 0, for other
// protocols k is zero.
func (k *flowKey) parse(b []byte, ip *IP) bool {
	if ip.Proto != ProtoTCP && ip.Proto != ProtoUDP {
		return false
	}
	k.version, k.proto = ip.Version, ip.Proto
	if ip.Version == 4 {
		k.src[0] = binary.BigEndian.Uint64(b[12:20])
	} else {
		k.src[0], k.src[1] = binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])
		k.dst[0], k.dst[1] = binary.BigEndian.Uint64(b[24:]), binary.BigEndian.Uint64(b[32:])
	}
	if ip.Fragment || len(b) < ip.HeaderLen+4 {
		return false
	}
	k.ports = binary.BigEndian.Uint32(b[ip.HeaderLen:])
	return true
}

// segment is a packet that may be merged with others of its flow.
type segment struct {
	b       []byte
	l4      int // offset of the TCP or UDP header
	headers int // offset of the payload
	size    int // bytes of payload, at least 1
	seq     uint32
	proto   uint8
	partial bool
	last    bool // PSH: nothing may follow
}

// parse reads the packet b of ip.Len bytes. It is false for what is never merged:
// IPv4 options and IPv6 extension headers, TCP flags other than ACK and PSH, no
// payload, UDP without checksum or shorter than its packet.
func (s *segment) parse(b []byte, ip *IP, partial bool) bool {
	if ip.HeaderLen != ipv4MinLen && ip.Version == 4 || ip.HeaderLen != ipv6Len && ip.Version == 6 {
		return false
	}
	n := l4Len(b, ip)
	if n == 0 || ip.HeaderLen+n >= len(b) {
		return false
	}
	s.b, s.l4, s.headers = b, ip.HeaderLen, ip.HeaderLen+n
	s.size = len(b) - s.headers
	s.seq, s.proto, s.partial, s.last = 0, ip.Proto, partial, false
	l4 := b[s.l4:]
	if s.proto == ProtoUDP {
		return binary.BigEndian.Uint16(l4[udpChecksumOff:]) != 0
	}
	if l4[12]&0x0f != 0 || l4[13]&^tcpPSH != tcpACK {
		return false
	}
	s.seq = binary.BigEndian.Uint32(l4[4:8])
	s.last = l4[13]&tcpPSH != 0
	return true
}

// verify reports whether nothing in s is damaged that a checksum covers. A
// partial one says that it has not been on a wire since it was made.
func (s *segment) verify() bool {
	if s.b[0]>>4 == 4 && ipv4Sum(s.b) != 0xffff {
		return false // merging would make it right
	}
	l4 := s.b[s.l4:]
	return s.partial || Sum(l4, pseudoSum(s.b, s.proto, len(l4))) == 0xffff
}

// offload returns that of a superpacket of which s is the first segment.
func (s *segment) offload() Offload {
	o := Offload{GSO: GSOTCPv4, Size: uint16(s.size), Partial: true,
		CsumStart: uint16(s.l4), CsumOffset: tcpChecksumOff, HdrLen: uint16(s.headers)}
	switch {
	case s.proto == ProtoUDP:
		o.GSO, o.CsumOffset = GSOUDP, udpChecksumOff
	case s.l4 == ipv6Len:
		o.GSO = GSOTCPv6
	}
	return o
}

// follows reports whether s, of the same flow, can be the next segment of f: it
// must be where a split of both together would put it, equal in all else.
func (f *coalesceFlow) follows(s *segment) bool {
	n, most := len(f.item.Parts), MaxCoalesced
	if s.proto == ProtoUDP {
		most = maxCoalescedUDP
	}
	return n < most && s.size <= f.first.size && f.item.Len+s.size <= maxPacketLen &&
		f.first.headers == s.headers && sameIP(f.first.b, s.b, n) &&
		(s.proto == ProtoUDP || f.seq == s.seq && sameTCP(f.first.b[s.l4:s.headers], s.b[s.l4:s.headers]))
}

// sameIP compares the IP headers of the first packet and of the one that would
// be the nth after it, addresses and protocol excepted, which are of the flow.
// IPv4 IDs count if fragments may be made (RFC 6864 section 4): the
// host's split numbers segments one by one. Otherwise they mean nothing.
func sameIP(a, b []byte, n int) bool {
	if a[0]>>4 == 6 {
		// Traffic class, flow label and hop limit.
		return binary.BigEndian.Uint32(a) == binary.BigEndian.Uint32(b) && a[7] == b[7]
	}
	// TOS, flags and TTL.
	flags := binary.BigEndian.Uint16(a[6:8])
	if a[1] != b[1] || flags != binary.BigEndian.Uint16(b[6:8]) || a[8] != b[8] {
		return false
	}
	return flags&ipv4DontFragment != 0 ||
		binary.BigEndian.Uint16(b[4:6]) == binary.BigEndian.Uint16(a[4:6])+uint16(n)
}

// sameTCP compares two TCP headers of one length and flow: acknowledgement,
// window, urgent pointer and options, of which none may be lost.
func sameTCP(a, b []byte) bool {
	return binary.BigEndian.Uint32(a[8:]) == binary.BigEndian.Uint32(b[8:]) &&
		binary.BigEndian.Uint16(a[14:]) == binary.BigEndian.Uint16(b[14:]) &&
		bytes.Equal(a[18:], b[18:])
}
