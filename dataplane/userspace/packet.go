package userspace

import (
	"net/netip"

	"github.com/overlayd/overlayd/encap"
)

// maxPacket is the length of the largest IP packet. Any datagram is shorter, and
// any can come: superpackets of a vxlan peer on the same machine arrive whole.
const maxPacket = 65535

// packet is one IP packet, with headroom for encapsulation in front of it, and with
// what the host that made it left for an offload to do. It is a value that its reader
// makes whole: nothing of the packet before it is left in it.
type packet struct {
	buf []byte // the headroom, then the packet
	at  int    // length of the headroom in bytes, at least encap.HeaderLen
	encap.Offload
}

// ip returns the packet itself.
func (p *packet) ip() []byte { return p.buf[p.at:] }

// datagram returns the packet behind its VXLAN and Ethernet header.
func (p *packet) datagram() []byte { return p.buf[p.at-encap.HeaderLen:] }

// datagram is the UDP payload of an underlay packet, and all that its receiver knows of it.
type datagram struct {
	buf  []byte
	from netip.Addr // never IPv4-mapped
	ecn  encap.ECN  // of the outer header

	// offload is what the packet in it leaves to be done. If it is not exact, nobody told:
	// then it has only what is certain, and the receiver is a guesser.
	offload encap.Offload
	exact   bool
}
