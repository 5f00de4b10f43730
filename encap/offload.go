package encap

import "encoding/binary"

// GSO is the kind of a superpacket. The values are those of gso_type in Linux'
// struct virtio_net_hdr.
type GSO uint8

// The kinds of superpacket that a TUN device reads and writes.
const (
	GSONone  GSO = 0 // an ordinary packet
	GSOTCPv4 GSO = 1
	GSOTCPv6 GSO = 4
	GSOUDP   GSO = 5 // of either IP version (Linux 6.2)
)

// Offload is what the host that made a packet leaves for a device to do, and what
// stands in the vnet header of the packet.
type Offload struct {
	GSO GSO
	// Partial says that the TCP or UDP checksum is to be completed: the field holds
	// the folded pseudo-header sum, and the rest of the sum begins at CsumStart.
	// That of every superpacket is.
	Partial bool
	Size    uint16 // payload bytes of every segment of a superpacket but the last

	// CsumStart is the offset of the TCP or UDP header, CsumOffset from there that
	// of the checksum, and HdrLen the offset of the payload. They are 0 unless Partial.
	CsumStart, CsumOffset, HdrLen uint16

	// MaxLen, if not 0, says that a TCP packet with a partial checksum may be a superpacket
	// without a sign of it: it is longer than MaxLen, and segments that are not will reach its
	// destination. The other fields describe it as an ordinary packet; see Limit.
	MaxLen uint16
}

// Limit makes of the packet b with a MaxLen the superpacket that it may be, and lowers the size
// of the segments of one that is known, so that they are not longer than MaxLen. Without a
// MaxLen it does nothing.
func (o *Offload) Limit(b []byte) {
	maxLen := int(o.MaxLen)
	o.MaxLen = 0
	size := maxLen - int(o.HdrLen)
	switch {
	case size <= 0 || o.GSO != GSONone && int(o.Size) <= size || o.GSO == GSONone && len(b) <= maxLen:
		return
	case b[0]>>4 == 6:
		o.GSO = GSOTCPv6
	default:
		o.GSO = GSOTCPv4
	}
	o.Size = uint16(size)
}

// Complete completes the checksum of the packet b, which o says is partial. 0 is written as its
// equal 0xffff: for UDP it means no checksum.
func (o *Offload) Complete(b []byte) {
	l4 := b[o.CsumStart:]
	sum := ^Sum(l4, 0)
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(l4[o.CsumOffset:], sum)
}

// SuperOffload returns the offload for the superpacket b that ParseIP read into
// ip, whose segments have size bytes of payload: TCP, and UDP of one
// datagram that fills the packet. ok is false for anything else, a size of 0, headers that do
// not fit and fragments. It makes the checksum partial. The caller
// makes sure that it was already, or has been verified: nobody can do so later.
func SuperOffload(b []byte, ip *IP, size uint16) (o Offload, ok bool) {
	l4 := l4Len(b, ip)
	if l4 == 0 || size == 0 {
		return Offload{}, false
	}
	o = partialOffload(ip, l4)
	o.Size = size
	switch {
	case ip.Proto == ProtoUDP:
		o.GSO = GSOUDP
	case ip.Version == 6:
		o.GSO = GSOTCPv6
	default:
		o.GSO = GSOTCPv4
	}
	putPartial(b, ip)
	return o, true
}

// PartialOffload returns the offload for the ordinary packet b that ParseIP read
// into ip and whose checksum is partial (IsPartial). ok is false if behind a UDP datagram
// there are bytes that no checksum covers: use CompleteChecksum then.
func PartialOffload(b []byte, ip *IP) (o Offload, ok bool) {
	l4 := l4Len(b, ip)
	if l4 == 0 {
		return Offload{}, false
	}
	return partialOffload(ip, l4), true
}

func partialOffload(ip *IP, l4 int) Offload {
	field := uint16(tcpChecksumOff)
	if ip.Proto == ProtoUDP {
		field = udpChecksumOff
	}
	return Offload{Partial: true, CsumStart: uint16(ip.HeaderLen), CsumOffset: field, HdrLen: uint16(ip.HeaderLen + l4)}
}

// l4Len returns the length of the TCP or UDP header of the packet b that ParseIP
// read into ip, or 0 if it is not all there, or a UDP length contradicts it.
func l4Len(b []byte, ip *IP) int {
	if ip.Fragment {
		return 0
	}
	l4 := b[ip.HeaderLen:ip.Len]
	switch {
	case ip.Proto == ProtoUDP && len(l4) >= udpLen && int(binary.BigEndian.Uint16(l4[4:6])) == len(l4):
		return udpLen
	case ip.Proto == ProtoTCP && len(l4) >= tcpMinLen:
		if n := int(l4[12]>>4) * 4; n >= tcpMinLen && n <= len(l4) {
			return n
		}
	}
	return 0
}

// putPartial replaces the checksum of b by the pseudo-header sum.
func putPartial(b []byte, ip *IP) {
	l4 := b[ip.HeaderLen:ip.Len]
	field := tcpChecksumOff
	if ip.Proto == ProtoUDP {
		field = udpChecksumOff
	}
	binary.BigEndian.PutUint16(l4[field:], pseudoSum(b, ip.Proto, len(l4)))
}
