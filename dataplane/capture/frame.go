package capture

import (
	"encoding/binary"
	"net/netip"

	"github.com/overlayd/overlayd/encap"
)

// A stream is a sequence of frames. All numbers are little-endian, and a frame's length is a multiple of 8:
//
//	 0       1       2       3       4       5       6       7
//	+-------+-------+-------+-------+-------+-------+-------+-------+
//	| length of the frame           | kind  |verdict| form  | GSO   |
//	+-------+-------+-------+-------+-------+-------+-------+-------+
//
// Verdict, form and GSO are 0 unless it is a packet. Behind them, by kind:
//
//	hello, end,
//	names        u32 length of the text, text, padding
//	lost         u64 how many packets the capture has lost so far
//	packet       the header below, bytes of the packet, padding
//
//	+-------+-------+-------+-------+-------+-------+-------+-------+
//	| time in ns since 1970                                         |
//	+-------+-------+-------+-------+-------+-------+-------+-------+
//	| VNI                           | length of the packet          |
//	+-------+-------+-------+-------+-------+-------+-------+-------+
//	| bytes of it that follow       | segment size  | flags         |
//	+-------+-------+-------+-------+-------+-------+-------+-------+
//	| IPv6 or IPv4-mapped address of the peer, or zeros             |
//	|                                                               |
//	+-------+-------+-------+-------+-------+-------+-------+-------+
//
// The first frame is a hello. A reader skips kinds that it does not know.
const (
	frameHeader  = 8
	packetHeader = 48
	frameAlign   = 8
	// maxPacket is the longest packet, behind a VXLAN and an Ethernet header.
	maxPacket = 1<<16 - 1 + encap.HeaderLen
	// MaxFrame is the longest frame of a stream, in bytes, and MaxText the longest text in one.
	MaxFrame = 1 << 17
	MaxText  = MaxFrame - frameHeader - 4

	flagPartial = 1
)

// Kind is what a frame holds.
type Kind uint8

// The kinds.
const (
	Hello    Kind = 1 // what the stream is: text that the ends agree on
	IsPacket Kind = 2
	Lost     Kind = 3
	End      Kind = 4 // why the stream ends here: text
	Names    Kind = 5 // text that tells more of packets which come later
	padding  Kind = 0xff
)

// Form is where the bytes of a packet begin.
type Form uint8

// The forms.
const (
	IP       Form = iota // with its IP header
	Datagram             // with the VXLAN header and the Ethernet header that it has on the wire
	Arrival              // likewise, of a datagram that was dropped: nothing in it need be true
	numForms
)

// Meta is what is known of a packet besides its bytes.
type Meta struct {
	Verdict Verdict
	Form    Form
	Peer    netip.Addr // VTEP that it goes to or comes from; of unknown ones the outer source; not valid: not known
	GSO     encap.GSO  // it is a superpacket of that kind
	Size    uint16     // payload bytes of each of its segments
	Partial bool       // its checksum is to be completed
}

// With returns m with what is left to offload.
func (m Meta) With(o *encap.Offload) Meta {
	m.GSO, m.Size, m.Partial = o.GSO, o.Size, o.Partial
	return m
}

// frameLen returns the length of a frame with n bytes in it.
func frameLen(n int) int { return (n + frameAlign - 1) &^ (frameAlign - 1) }

func putFrame(b []byte, k Kind) {
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	b[4], b[5], b[6], b[7] = byte(k), 0, 0, 0
}

// putPacket writes the header of a frame that is b: n of whole bytes of a packet follow.
func putPacket(b []byte, m *Meta, vni uint32, ns int64, whole, n int) {
	_ = b[packetHeader-1]
	putFrame(b, IsPacket)
	b[5], b[6], b[7] = byte(m.Verdict), byte(m.Form), byte(m.GSO)
	binary.LittleEndian.PutUint64(b[8:], uint64(ns))
	binary.LittleEndian.PutUint32(b[16:], vni)
	binary.LittleEndian.PutUint32(b[20:], uint32(whole))
	binary.LittleEndian.PutUint32(b[24:], uint32(n))
	binary.LittleEndian.PutUint16(b[28:], m.Size)
	flags := uint16(0)
	if m.Partial {
		flags = flagPartial
	}
	binary.LittleEndian.PutUint16(b[30:], flags)
	var peer [16]byte
	if m.Peer.IsValid() {
		peer = m.Peer.As16()
	}
	copy(b[32:packetHeader], peer[:])
}

// timeOf returns the time of a packet's frame.
func timeOf(b []byte) int64 { return int64(binary.LittleEndian.Uint64(b[8:])) }

// AppendText appends a frame of kind Hello, Names or End. What does not fit a frame is cut.
func AppendText(b []byte, k Kind, text string) []byte {
	text = text[:min(len(text), MaxText)]
	at, n := len(b), frameLen(frameHeader+4+len(text))
	b = append(b, make([]byte, n)...)
	putFrame(b[at:], k)
	binary.LittleEndian.PutUint32(b[at+frameHeader:], uint32(len(text)))
	copy(b[at+frameHeader+4:], text)
	return b
}

// AppendLost appends a frame of kind Lost.
func AppendLost(b []byte, n uint64) []byte {
	at := len(b)
	b = append(b, make([]byte, frameHeader+8)...)
	putFrame(b[at:], Lost)
	binary.LittleEndian.PutUint64(b[at+frameHeader:], n)
	return b
}

// Limit returns how many packets the frames of b hold, at most n, and b up to the end of the last one of these.
func Limit(b []byte, n int) (first []byte, packets int) {
	at := 0
	for at < len(b) && packets < n {
		if Kind(b[at+4]) == IsPacket {
			packets++
		}
		at += int(binary.LittleEndian.Uint32(b[at:]))
	}
	return b[:at], packets
}
