package userspace

import (
	"net/netip"

	"github.com/overlayd/overlayd/encap"
)

// headroom is the space in front of every packet: what encapsulation prepends.
const headroom = encap.HeaderLen

// maxPacket is the length of the largest IP packet. Any datagram is shorter, and
// any can come: superpackets of a vxlan peer on the same machine arrive whole.
const maxPacket = 65535

// bufLen is the length of a buffer that holds every packet and every datagram.
const bufLen = headroom + maxPacket

// packet is one IP packet, with room for encapsulation in front of it, and with
// what the host that made it left for an offload to do. It is a value that its reader
// makes whole: nothing of the packet before it is left in it.
type packet struct {
	buf []byte // headroom bytes, then the packet
	encap.Offload

	// maxLen, where it is not 0, says that the packet may be a TCP superpacket
	// without a sign of it: it is longer than maxLen, and segments that are not
	// will reach its destination. Offload says what it is if it is none.
	maxLen uint16
}

// limit makes of a packet with maxLen the superpacket that it may be.
func (p *packet) limit() {
	if p.maxLen != 0 {
		limitSegments(&p.Offload, p.ip(), int(p.maxLen))
	}
}

// limitSegments lowers the size of the segments of a TCP packet, ordinary or super,
// whose checksum is partial, so that they are not longer than maxLen.
func limitSegments(o *encap.Offload, b []byte, maxLen int) {
	size := maxLen - int(o.HdrLen)
	switch {
	case size <= 0 || o.GSO != encap.GSONone && int(o.Size) <= size || o.GSO == encap.GSONone && len(b) <= maxLen:
		return
	case b[0]>>4 == 6:
		o.GSO = encap.GSOTCPv6
	default:
		o.GSO = encap.GSOTCPv4
	}
	o.Size = uint16(size)
}

// ip returns the packet itself.
func (p *packet) ip() []byte { return p.buf[headroom:] }

// datagram is the UDP payload of an underlay packet.
type datagram struct {
	buf  []byte
	from netip.Addr // never IPv4-mapped
	ecn  encap.ECN  // of the outer header
	// gsoSize says that the packet in it is a UDP superpacket whose segments have so
	// many bytes of payload. It is 0 for all others.
	gsoSize uint16
}

// queue is where the overlay device hands out packets, used by one goroutine.
type queue interface {
	// Read waits for the next packet that the host sends. Packets are borrowed:
	// before Read uses the bytes of any again, and before it waits, it calls flush,
	// so that what was put off for more packets to come is done then.
	Read(flush func()) (*packet, error)
	// Answer hands the host, at once, a complete packet behind headroom of zeros. It
	// is for the goroutine that reads, and may fail in silence.
	Answer(b []byte)
}

// writer is where the overlay device takes packets, used by one goroutine. Several
// may write to one device.
type writer interface {
	// Write hands a packet to the host, with its offloads done where the device
	// does not do them, and counts what became of it, at the next Flush at the
	// latest. It may change the bytes of the packet, which ParseIP read into ip.
	Write(p *packet, ip *encap.IP, c *counters)
	// Flush does what Write put off.
	Flush(c *counters)
}

// sender is the way out to the underlay of one family, used by one goroutine.
type sender interface {
	// Send sends the encapsulated packet p to e's VTEP and counts what became of it,
	// at the next Flush at the latest. How a superpacket is split is its business.
	// It may change p's bytes. fragment says that p is longer than the path takes, and
	// that the sender of p allows the underlay to fragment it.
	Send(p *packet, e *entry, fragment bool, c *counters)
	// Flush does what Send put off.
	Flush(c *counters)
}

// receiver is the way in from the underlay, used by one goroutine.
type receiver interface {
	// Receive waits for the next datagram. Datagrams are borrowed: before Receive
	// uses the bytes of any again, and before it waits, it calls flush.
	Receive(d *datagram, flush func()) error
}
