package encap

import (
	"encoding/binary"
	"errors"
)

const (
	// VXLANLen is the length of the VXLAN header in bytes.
	VXLANLen = 8
	// HeaderLen is the length in bytes of all that stands between the outer UDP
	// header and the inner IP packet: VXLAN and inner Ethernet.
	HeaderLen = VXLANLen + EthernetLen
	// DefaultPort is the UDP port of flannel and of the Linux vxlan device; it is
	// older than, and differs from, IANA's 4789.
	DefaultPort = 8472
	// MaxVNI is the largest VXLAN network identifier: it has 24 bits.
	MaxVNI = 1<<24 - 1
)

// The VXLAN header as one big-endian word, RFC 7348 section 5:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|R|R|R|R|I|R|R|R|            Reserved                           |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                VXLAN Network Identifier (VNI) |   Reserved    |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
const (
	vxlanFlagI    = 0x08 << 56 // the VNI is valid
	vxlanReserved = ^uint64(MaxVNI << 8)
)

// The errors of parsing. The functions that return them add nothing to them:
// they run once per packet, and who counts drops has no use for text.
var (
	// ErrShort: the buffer ends before the header does.
	ErrShort = errors.New("shorter than its header")
	// ErrVXLAN: the VXLAN header has other flags than I, or a reserved bit set.
	ErrVXLAN = errors.New("VXLAN flags or reserved bits are not those of RFC 7348")
	// ErrIP: the inner packet is not IP, or its lengths contradict each other.
	ErrIP = errors.New("not IPv4 or IPv6, or its lengths are inconsistent")
)

// ParseVXLAN reads the VXLAN header at the start of b and returns its VNI.
// It is as strict as the Linux vxlan device without extensions (checked against
// kernel 6.18; RFC 7348 would have a receiver ignore reserved bits): the
// flags must be I alone and every reserved bit zero, else the error is ErrVXLAN.
// A buffer of less than VXLANLen bytes is ErrShort.
func ParseVXLAN(b []byte) (vni uint32, err error) {
	if len(b) < VXLANLen {
		return 0, ErrShort
	}
	w := binary.BigEndian.Uint64(b)
	if w&vxlanReserved != vxlanFlagI {
		return 0, ErrVXLAN
	}
	return uint32(w >> 8 & MaxVNI), nil
}

// PutVXLAN writes the VXLAN header for vni to b[:VXLANLen]; the bits of vni above
// the 24th are ignored. It panics if b is shorter.
func PutVXLAN(b []byte, vni uint32) {
	binary.BigEndian.PutUint64(b[:VXLANLen], vxlanFlagI|uint64(vni&MaxVNI)<<8)
}

// Template is the VXLAN and inner Ethernet header towards one VTEP, made once
// per peer so that a packet costs one small copy. The EtherType is left
// open: it is the packet's.
type Template [HeaderLen]byte

// NewTemplate returns the header that carries frames of network vni from the
// VTEP with address src to the one with address dst.
func NewTemplate(vni uint32, dst, src MAC) Template {
	var t Template
	PutVXLAN(t[:VXLANLen], vni)
	PutEthernet(t[VXLANLen:], dst, src, 0)
	return t
}

// Put writes the header with the given EtherType to b[:HeaderLen], just before
// the inner packet. It panics if b is shorter.
func (t *Template) Put(b []byte, etherType uint16) {
	h := (*[HeaderLen]byte)(b)
	// Word by word: *h = *t would be a call of memmove, because the two might overlap.
	binary.LittleEndian.PutUint64(h[0:], binary.LittleEndian.Uint64(t[0:]))
	binary.LittleEndian.PutUint64(h[8:], binary.LittleEndian.Uint64(t[8:]))
	binary.LittleEndian.PutUint32(h[16:], binary.LittleEndian.Uint32(t[16:]))
	binary.BigEndian.PutUint16(h[20:], etherType)
}
