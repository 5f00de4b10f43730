package encap

import (
	"encoding/binary"
	"errors"
)

// The errors of Splitter.Init.
var (
	// ErrNotTCP: only TCP can be split, and no fragment.
	ErrNotTCP = errors.New("not an unfragmented TCP packet")
	// ErrMaxLen: not one byte of payload fits behind the headers.
	ErrMaxLen = errors.New("headers alone exceed the largest segment")
)

// MaxSplitHeader bounds the headers of a packet that a Splitter accepts, in bytes:
// IPv4 and TCP with all options, or IPv6 with a modest number of extension headers.
const MaxSplitHeader = 128

// The bits of the TCP flags byte that not every segment may have.
const (
	tcpFIN = 0x01
	tcpPSH = 0x08
	tcpCWR = 0x80
)

// Splitter cuts a TCP superpacket into segments, as the kernel's TCP segmentation
// does. The payload is never copied: each segment is its headers, written
// to memory of the caller, and a piece of the original packet. The zero value
// has no segments; one Splitter serves any number of packets, one by one.
type Splitter struct {
	packet  []byte // all that the IP header claims, and no padding; borrowed
	l4      int    // offset of the TCP header
	headers int    // offset of the payload
	mss     int    // payload bytes of every segment but the last
	next    int    // offset of the payload not yet handed out
	done    bool
	pseudo  uint16 // pseudo-header sum without the length
}

// Init prepares to split packet into segments of at most maxLen bytes, IP header
// included. The packet may be smaller: it is then its only segment. The
// Splitter refers to the packet until the last segment was taken.
//
// Each segment gets a right checksum whatever that of the packet was. The
// caller sees to it that it was partial or has been verified.
func (s *Splitter) Init(packet []byte, maxLen int) error {
	*s = Splitter{done: true}
	var ip IP
	if err := ParseIP(packet, &ip); err != nil {
		return err
	}
	if ip.Proto != ProtoTCP || ip.Fragment || ip.Len-ip.HeaderLen < tcpMinLen {
		return ErrNotTCP
	}
	headers := ip.HeaderLen + int(packet[ip.HeaderLen+12]>>4)*4
	switch {
	case headers < ip.HeaderLen+tcpMinLen || headers > ip.Len:
		return ErrNotTCP
	case headers > MaxSplitHeader || headers >= maxLen:
		return ErrMaxLen
	}
	*s = Splitter{
		packet:  packet[:ip.Len],
		l4:      ip.HeaderLen,
		headers: headers,
		mss:     maxLen - headers,
		next:    headers,
		pseudo:  PseudoSum(ip.Src, ip.Dst, ProtoTCP, 0),
	}
	return nil
}

// Segments returns how many segments the packet given to Init has in all.
func (s *Splitter) Segments() int {
	if s.mss == 0 {
		return 0
	}
	return max(1, (len(s.packet)-s.headers+s.mss-1)/s.mss)
}

// Next writes the headers of the next segment to hdr and returns their length,
// which is the same for all, and the payload that follows them. hdr must have
// room for MaxSplitHeader bytes. ok is false when there is no segment left.
func (s *Splitter) Next(hdr []byte) (n int, payload []byte, ok bool) {
	if s.done {
		return 0, nil, false
	}
	off := s.next
	end := min(off+s.mss, len(s.packet))
	s.next = end
	s.done = end == len(s.packet)

	h := hdr[:s.headers]
	copy(h, s.packet)
	payload = s.packet[off:end:end]
	s.putIP(h, len(h)+len(payload), (off-s.headers)/s.mss)
	s.putTCP(h[s.l4:], off-s.headers, payload)
	return len(h), payload, true
}

// putIP makes h the IP header of segment i, which is total bytes long.
func (s *Splitter) putIP(h []byte, total, i int) {
	if h[0]>>4 == 6 {
		binary.BigEndian.PutUint16(h[4:6], uint16(total-ipv6Len))
		return
	}
	binary.BigEndian.PutUint16(h[2:4], uint16(total))
	// RFC 6864: unique where the segment may be fragmented on its way.
	id := binary.BigEndian.Uint16(h[4:6])
	binary.BigEndian.PutUint16(h[4:6], id+uint16(i))
	binary.BigEndian.PutUint16(h[10:12], 0)
	binary.BigEndian.PutUint16(h[10:12], ^Sum(h[:s.l4], 0))
}

// putTCP makes h the TCP header of the segment whose payload starts off bytes
// into that of the packet.
func (s *Splitter) putTCP(h []byte, off int, payload []byte) {
	seq := binary.BigEndian.Uint32(h[4:8])
	binary.BigEndian.PutUint32(h[4:8], seq+uint32(off))
	if !s.done {
		h[13] &^= tcpFIN | tcpPSH
	}
	if off > 0 {
		h[13] &^= tcpCWR // RFC 3168 section 6.1.2: once per window
	}
	length := len(h) + len(payload)
	binary.BigEndian.PutUint16(h[16:18], 0)
	sum := Sum(h, Fold(uint64(s.pseudo)+uint64(length)))
	binary.BigEndian.PutUint16(h[16:18], ^Sum(payload, sum))
}
