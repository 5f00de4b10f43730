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

// gso is the kind of a superpacket.
type gso uint8

const (
	gsoNone gso = iota // an ordinary packet
	gsoTCP
)

// packet is one IP packet, with room for encapsulation in front of it, and with
// what the host that made it left for an offload to do.
type packet struct {
	buf []byte // headroom bytes, then the packet

	gso     gso
	gsoSize uint16 // payload bytes of each segment of a superpacket but the last

	// partial says that the TCP or UDP checksum is to be completed: its field holds
	// the folded pseudo-header sum, and the rest of the sum begins at csumStart.
	partial bool
	// csumStart is the offset of the TCP or UDP header, and csumOffset from there
	// the offset of the field. Both are 0 unless partial or a superpacket.
	csumStart, csumOffset uint16
}

// ip returns the packet itself.
func (p *packet) ip() []byte { return p.buf[headroom:] }

// datagram is the UDP payload of an underlay packet.
type datagram struct {
	buf  []byte
	from netip.Addr // never IPv4-mapped
}

// queue is the overlay device. Each method is used by one goroutine.
type queue interface {
	// Read waits for the next packet that the host sends. The packet is borrowed:
	// its bytes are the queue's again at the next Read. Read calls idle before it
	// waits, so that what was put off for more packets to come is done then.
	Read(p *packet, idle func()) error
	// Write hands a packet to the host, with its offloads done where the device
	// does not do them, and counts what became of it. It may change its bytes.
	Write(p *packet, c *counters)
}

// sender is the way out to the underlay, used by one goroutine.
type sender interface {
	// Send sends the encapsulated packet p to e's VTEP and counts what became of it.
	// How a superpacket is split is its business. It may change p's bytes.
	Send(p *packet, e *entry, c *counters)
}

// receiver is the way in from the underlay, used by one goroutine.
type receiver interface {
	// Receive waits for the next datagram. The datagram is borrowed: its bytes are
	// the receiver's again at the next Receive. Receive calls idle before it waits.
	Receive(d *datagram, idle func()) error
}
