package carrier

import (
	"net/netip"

	"github.com/overlayd/overlayd/encap"
)

// MaxPacket is the length of the largest IP packet. Any datagram is shorter, and
// any can come: superpackets of a vxlan peer on the same machine arrive whole.
const MaxPacket = 65535

// Packet is one IP packet, with headroom for encapsulation in front of it, and with
// what the host that made it left for an offload to do. It is a value that its reader
// makes whole: nothing of the packet before it is left in it.
type Packet struct {
	Buf []byte // the headroom, then the packet
	At  int    // length of the headroom in bytes, at least encap.HeaderLen
	encap.Offload
}

// IP returns the packet itself.
func (p *Packet) IP() []byte { return p.Buf[p.At:] }

// Datagram returns the packet behind its VXLAN and Ethernet header.
func (p *Packet) Datagram() []byte { return p.Buf[p.At-encap.HeaderLen:] }

// Datagram is the UDP payload of an underlay packet, and all that its receiver knows of it.
type Datagram struct {
	Buf  []byte
	From netip.Addr // never IPv4-mapped
	ECN  encap.ECN  // of the outer header

	// Offload is what the packet in it leaves to be done. If it is not Exact, nobody told:
	// then it has only what is certain, and the receiver is a Guesser.
	Offload encap.Offload
	Exact   bool
}
