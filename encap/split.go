package encap

import (
	"encoding/binary"
	"errors"
)

// The errors of Splitter.Init and Splitter.InitUDP, besides those of ParseIP.
var (
	// ErrNoSplit: not of the protocol asked for, a fragment, or longer headers
	// than MaxSplitHeader.
	ErrNoSplit = errors.New("no packet that can be split")
	// ErrMaxLen: not one byte of payload fits behind the headers.
	ErrMaxLen = errors.New("headers alone fill the largest segment")
)

// MaxSplitHeader bounds the headers of a packet that a Splitter accepts, in bytes.
// It has room for IPv4 and TCP with all options they can have, and for
// IPv6 and TCP with 28 bytes of extension headers.
const MaxSplitHeader = 128

// The bits of the TCP flags byte that not every segment may have.
const (
	tcpFIN = 0x01
	tcpPSH = 0x08
	tcpCWR = 0x80
)

// Splitter cuts a superpacket into segments, as the kernel's segmentation offload
// does. The payload is never copied: a segment is its headers, written to
// memory of the caller, and a piece of the original packet. The zero value has no
// segments; one Splitter serves any number of packets, one after the other.
//
// Each segment gets a right TCP or UDP checksum whatever that of the superpacket
// was. The caller sees to it that it was partial or has been verified.
type Splitter struct {
	packet  []byte // all that the IP header claims and no padding; borrowed
	l4      int    // offset of the TCP or UDP header
	headers int    // offset of the payload
	size    int    // payload bytes of every segment but the last
	i, n    int    // segments handed out, and in all
	pseudo  uint16 // sum of the pseudo-header without the length
	proto   uint8
}

// Init prepares to split a TCP packet into segments of at most maxLen bytes, IP
// header included. The packet may be smaller: it is then its only segment. The
// Splitter refers to the packet until the last segment was taken.
func (s *Splitter) Init(packet []byte, maxLen int) error {
	var ip IP
	if err := s.reset(packet, &ip, ProtoTCP, tcpMinLen); err != nil {
		return err
	}
	tcpLen := int(packet[ip.HeaderLen+12]>>4) * 4
	if tcpLen < tcpMinLen {
		return ErrNoSplit
	}
	return s.plan(tcpLen, maxLen-ip.HeaderLen-tcpLen)
}

// InitUDP prepares to split a UDP packet into datagrams of size payload bytes, the
// last of which may be shorter: the boundaries that the sending application
// set with UDP_SEGMENT, which no length limit can tell. The rest is as for Init.
// Datagrams of a packet without a checksum (IPv4 only) have none either.
func (s *Splitter) InitUDP(packet []byte, size int) error {
	var ip IP
	if err := s.reset(packet, &ip, ProtoUDP, udpLen); err != nil {
		return err
	}
	return s.plan(udpLen, size)
}

// reset reads the IP header of packet, which must carry an unfragmented proto
// with at least minLen bytes. Until plan follows, the Splitter has no segments.
func (s *Splitter) reset(packet []byte, ip *IP, proto uint8, minLen int) error {
	*s = Splitter{}
	if err := ParseIP(packet, ip); err != nil {
		return err
	}
	if ip.Proto != proto || ip.Fragment || ip.Len-ip.HeaderLen < minLen {
		return ErrNoSplit
	}
	s.packet = packet[:ip.Len]
	s.l4 = ip.HeaderLen
	s.proto = proto
	s.pseudo = PseudoSum(packet, ip, 0)
	return nil
}

// plan lays out segments of size payload bytes behind an L4 header of l4Len.
func (s *Splitter) plan(l4Len, size int) error {
	s.headers = s.l4 + l4Len
	payload := len(s.packet) - s.headers
	switch {
	case payload < 0 || s.headers > MaxSplitHeader:
		return ErrNoSplit
	case size < 1:
		return ErrMaxLen
	}
	s.size = size
	s.n = max(1, (payload+size-1)/size)
	return nil
}

// Segments returns how many segments the packet has in all.
func (s *Splitter) Segments() int { return s.n }

// Next writes the headers of the next segment to hdr and returns their length,
// which is the same for all, and the payload that follows them. hdr must have
// room for the headers, at most MaxSplitHeader bytes, and panics where it has
// not. ok is false when there is no segment left.
func (s *Splitter) Next(hdr []byte) (n int, payload []byte, ok bool) {
	if s.i >= s.n {
		return 0, nil, false
	}
	off := s.i * s.size
	body := s.packet[s.headers:]
	payload = body[off:min(off+s.size, len(body))]

	h := hdr[:s.headers]
	copy(h, s.packet)
	s.putIP(h[:s.l4], len(h)+len(payload))
	if s.proto == ProtoTCP {
		s.putTCP(h[s.l4:], off, payload)
	} else {
		s.putUDP(h[s.l4:], payload)
	}
	s.i++
	return len(h), payload, true
}

// putIP makes h the IP header of segment s.i, which is total bytes long.
func (s *Splitter) putIP(h []byte, total int) {
	if h[0]>>4 == 6 {
		binary.BigEndian.PutUint16(h[4:6], uint16(total-ipv6Len))
		return
	}
	binary.BigEndian.PutUint16(h[2:4], uint16(total))
	// RFC 6864 section 4: unique, in case the segment is fragmented on its way.
	id := binary.BigEndian.Uint16(h[4:6])
	binary.BigEndian.PutUint16(h[4:6], id+uint16(s.i))
	binary.BigEndian.PutUint16(h[10:12], 0)
	binary.BigEndian.PutUint16(h[10:12], ^Sum(h, 0))
}

// putTCP makes h the TCP header of segment s.i, whose payload is off bytes into
// that of the packet.
func (s *Splitter) putTCP(h []byte, off int, payload []byte) {
	seq := binary.BigEndian.Uint32(h[4:8])
	binary.BigEndian.PutUint32(h[4:8], seq+uint32(off))
	if s.i < s.n-1 {
		h[13] &^= tcpFIN | tcpPSH
	}
	if s.i > 0 {
		h[13] &^= tcpCWR // RFC 3168 section 6.1.2: the window was reduced once
	}
	binary.BigEndian.PutUint16(h[tcpChecksumOff:], 0)
	binary.BigEndian.PutUint16(h[tcpChecksumOff:], ^s.sum(h, payload))
}

// putUDP makes h the UDP header of segment s.i.
func (s *Splitter) putUDP(h, payload []byte) {
	binary.BigEndian.PutUint16(h[4:6], uint16(len(h)+len(payload)))
	if binary.BigEndian.Uint16(h[udpChecksumOff:]) == 0 {
		return
	}
	binary.BigEndian.PutUint16(h[udpChecksumOff:], 0)
	binary.BigEndian.PutUint16(h[udpChecksumOff:], udpChecksum(s.sum(h, payload)))
}

// sum returns the sum of pseudo-header, L4 header and payload.
func (s *Splitter) sum(h, payload []byte) uint16 {
	length := len(h) + len(payload)
	return Sum(payload, Sum(h, Fold(uint64(s.pseudo)+uint64(length))))
}
