package encap

import (
	"encoding/binary"
	"errors"
)

// The errors of Splitter.InitOffload, besides those of ParseIP.
var (
	// ErrNoSplit: not of the protocol asked for, a fragment, or longer headers
	// than MaxSplitHeader.
	ErrNoSplit = errors.New("not a packet that can be split")
	// ErrMaxLen: not one byte of payload fits behind the headers.
	ErrMaxLen = errors.New("headers alone fill the largest segment")
	// ErrSegments: more segments than the host's own TCP or UDP would make of it. Each costs as much as a packet, and a packet socket can ask
	// for segments of one byte.
	ErrSegments = errors.New("too many segments")
)

// The limits of ErrSegments. What a Coalescer has made is within them.
const (
	maxPieces  = MaxCoalesced // no fewer than Linux' UDP_MAX_SEGMENTS; of TCP there may be more, unless they are smaller than
	minTCPSize = 48           // Linux' TCP_MIN_SND_MSS
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
// All segments have headers of one length and payloads of one size, the last
// maybe a shorter one, so that with a VXLAN header each they are what a send with
// UDP_SEGMENT wants (RunLen says how many of them).
//
// Each segment gets a right TCP or UDP checksum whatever that of the superpacket
// was; a UDP checksum of 0 stays 0. The caller makes sure that it was partial or has been verified.
type Splitter struct {
	packet  []byte // all that the IP header claims and no padding; borrowed
	l4      int    // offset of the TCP or UDP header
	headers int    // offset of the payload
	size    int    // payload bytes of every segment but the last
	i, n    int    // segments handed out, and in all
	proto   uint8

	// What is the same in every segment is summed once.
	ipSum uint64 // of an IPv4 header without length, ID and checksum
	l4Sum uint64 // of pseudo-header and L4 header, see putTCP and putUDP
}

// InitOffload prepares to split a superpacket at the boundaries that its vnet
// header gives. HdrLen is ignored: in a forwarded packet it is
// whatever was linear. GSO and CsumStart must be what is in the packet, else the
// error is ErrNoSplit. A packet with no more payload than o.Size is its only segment. The
// Splitter refers to the packet until the last segment was taken.
func (s *Splitter) InitOffload(packet []byte, o Offload) error {
	var err error
	switch o.GSO {
	case GSOTCPv4, GSOTCPv6:
		err = s.reset(packet, ProtoTCP, tcpMinLen)
	case GSOUDP:
		err = s.reset(packet, ProtoUDP, udpLen)
	default:
		*s = Splitter{}
		return ErrNoSplit
	}
	switch {
	case err != nil:
		return err
	case int(o.CsumStart) != s.l4,
		o.GSO == GSOTCPv4 && packet[0]>>4 != 4,
		o.GSO == GSOTCPv6 && packet[0]>>4 != 6:
		return ErrNoSplit
	case len(s.packet)-s.headers > maxPieces*int(o.Size) && o.Size > 0 && (o.GSO == GSOUDP || o.Size < minTCPSize):
		return ErrSegments
	}
	return s.plan(int(o.Size))
}

// reset reads the headers of packet, which must carry an unfragmented proto with
// at least minLen bytes. Until plan follows, the Splitter has no segments.
func (s *Splitter) reset(packet []byte, proto uint8, minLen int) error {
	*s = Splitter{}
	var ip IP
	if err := ParseIP(packet, &ip); err != nil {
		return err
	}
	if ip.Proto != proto || ip.Fragment || ip.Len-ip.HeaderLen < minLen {
		return ErrNoSplit
	}
	l4 := udpLen
	if proto == ProtoTCP {
		l4 = int(packet[ip.HeaderLen+12]>>4) * 4
	}
	if l4 < minLen || ip.HeaderLen+l4 > min(ip.Len, MaxSplitHeader) {
		return ErrNoSplit
	}
	s.packet = packet[:ip.Len]
	s.l4 = ip.HeaderLen
	s.headers = ip.HeaderLen + l4
	s.proto = proto
	return nil
}

// plan lays out segments of size payload bytes.
func (s *Splitter) plan(size int) error {
	if size < 1 {
		return ErrMaxLen
	}
	payload := len(s.packet) - s.headers
	s.size = size
	s.n = max(1, (payload+size-1)/size)

	ip, l4 := s.packet[:s.l4], s.packet[s.l4:s.headers]
	if ip[0]>>4 == 4 {
		s.ipSum = without(Sum(ip, 0), ip[2:4], ip[4:6], ip[10:12])
	}
	sum := Sum(l4, pseudoSum(s.packet, s.proto, 0))
	if s.proto == ProtoTCP {
		s.l4Sum = without(sum, l4[4:6], l4[6:8], l4[12:14], l4[tcpChecksumOff:])
	} else {
		s.l4Sum = without(sum, l4[4:6], l4[udpChecksumOff:])
	}
	return nil
}

// without takes words out of a sum that they are in (RFC 1624 section 3).
func without(sum uint16, words ...[]byte) uint64 {
	s := uint64(sum)
	for _, w := range words {
		s += uint64(^binary.BigEndian.Uint16(w))
	}
	return s
}

// Segments returns how many segments the packet has in all.
func (s *Splitter) Segments() int { return s.n }

// Left returns how many of the segments are not taken yet.
func (s *Splitter) Left() int { return s.n - s.i }

// Len returns the length of the packet in bytes, without padding.
func (s *Splitter) Len() int { return len(s.packet) }

// HeaderLen returns the length in bytes of the headers of each segment.
func (s *Splitter) HeaderLen() int { return s.headers }

// RunLen returns how many of the segments left the next run should have, each
// of them in a datagram with HeaderLen bytes in front (the function RunLen).
func (s *Splitter) RunLen(limit RunLimit) int {
	left := s.n - s.i
	overhead := HeaderLen + s.headers
	payload := max(0, len(s.packet)-s.headers-s.i*s.size)
	return RunLen(left*overhead+payload, overhead+s.size, limit)
}

// Next writes the headers of the next segment to hdr and returns their length,
// which is the same for all, and the payload that follows them. hdr must have
// room for the headers, at most MaxSplitHeader bytes, and panics if it has
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
	// RFC 6864 section 4: unique, in case the segment is fragmented on its way.
	id := binary.BigEndian.Uint16(h[4:6]) + uint16(s.i)
	binary.BigEndian.PutUint16(h[2:4], uint16(total))
	binary.BigEndian.PutUint16(h[4:6], id)
	binary.BigEndian.PutUint16(h[10:12], ^Fold(s.ipSum+uint64(total)+uint64(id)))
}

// putTCP makes h the TCP header of segment s.i, whose payload is off bytes into
// that of the packet. s.l4Sum lacks length, sequence number, flags and checksum.
func (s *Splitter) putTCP(h []byte, off int, payload []byte) {
	seq := binary.BigEndian.Uint32(h[4:8]) + uint32(off)
	binary.BigEndian.PutUint32(h[4:8], seq)
	if s.i < s.n-1 {
		h[13] &^= tcpFIN | tcpPSH
	}
	if s.i > 0 {
		h[13] &^= tcpCWR // RFC 3168 section 6.1.2: the window was reduced once
	}
	flags := binary.BigEndian.Uint16(h[12:14])
	sum := s.l4Sum + uint64(len(h)+len(payload)) + uint64(seq) + uint64(flags)
	binary.BigEndian.PutUint16(h[tcpChecksumOff:], ^Sum(payload, Fold(sum)))
}

// putUDP makes h the UDP header of segment s.i. s.l4Sum lacks both lengths, which
// are the same, and the checksum.
func (s *Splitter) putUDP(h, payload []byte) {
	length := uint16(len(h) + len(payload))
	binary.BigEndian.PutUint16(h[4:6], length)
	if binary.BigEndian.Uint16(h[udpChecksumOff:]) == 0 {
		return
	}
	sum := Sum(payload, Fold(s.l4Sum+2*uint64(length)))
	binary.BigEndian.PutUint16(h[udpChecksumOff:], udpChecksum(sum))
}
