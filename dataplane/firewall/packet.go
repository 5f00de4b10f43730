package firewall

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/nft"
)

// Path is the way of a packet through the host.
type Path string

// The paths.
const (
	Forwarded Path = "forwarded" // from another host to another host
	Received  Path = "received"  // from another host to this one
	Sent      Path = "sent"      // by this host
)

// Packet is the first packet of a connection. What is empty or 0 is not known; rules that ask for it may match or not.
type Packet struct {
	Path     Path
	In, Out  string // names of the interfaces that it comes and leaves by
	Protocol uint8  // unix.IPPROTO_...
	Src, Dst netip.Addr
	SrcPort  uint16
	DstPort  uint16
}

func (p Packet) family() nft.Family {
	if p.Dst.Is4() || !p.Dst.IsValid() && p.Src.Is4() {
		return nft.IPv4
	}
	return nft.IPv6
}

// hooks are where base chains see the packet.
func (p Packet) hooks() []uint32 {
	switch p.Path {
	case Received:
		return []uint32{unix.NF_INET_PRE_ROUTING, unix.NF_INET_LOCAL_IN}
	case Sent:
		return []uint32{unix.NF_INET_LOCAL_OUT, unix.NF_INET_POST_ROUTING}
	}
	return []uint32{unix.NF_INET_PRE_ROUTING, unix.NF_INET_FORWARD, unix.NF_INET_POST_ROUTING}
}

// types are those of its addresses in the routing tables (unix.RTN_...): those of this host are local, all others unicast.
func (p Packet) types() (src, dst uint32) {
	src, dst = unix.RTN_UNICAST, unix.RTN_UNICAST
	switch p.Path {
	case Received:
		dst = unix.RTN_LOCAL
	case Sent:
		src = unix.RTN_LOCAL
	}
	return src, dst
}

// device returns the hook of the family netdev that sees the packet, and the interface on which it does.
func (p Packet) device() (hook uint32, name string) {
	if p.Path == Sent {
		return unix.NF_NETDEV_EGRESS, p.Out
	}
	return unix.NF_NETDEV_INGRESS, p.In
}

// comes returns the interface that the packet has come by, as rules at a hook see it; ok is false if it is not known.
func (p Packet) comes(hook uint32) (name string, ok bool) {
	if p.Path == Sent {
		return "", true
	}
	// Kernels differ in what is still known of it behind routing.
	return p.In, p.In != "" && hook != unix.NF_INET_POST_ROUTING
}

// leaves is comes for the interface that the packet leaves by.
func (p Packet) leaves(hook uint32) (name string, ok bool) {
	if hook == unix.NF_INET_PRE_ROUTING || hook == unix.NF_INET_LOCAL_IN {
		return "", true
	}
	return p.Out, p.Out != ""
}

// some are bytes, of which only those bits are known that the mask has.
type some struct{ bytes, known []byte }

// whole is the mask of a byte that is known.
const whole = 0xff

func unknown(n int) some { return some{make([]byte, n), make([]byte, n)} }

func known(b []byte) some {
	s := unknown(len(b))
	copy(s.bytes, b)
	for i := range s.known {
		s.known[i] = whole
	}
	return s
}

// put makes the bytes at an offset known.
func (s some) put(at int, b ...byte) {
	copy(s.bytes[at:], b)
	for i := range b {
		s.known[at+i] = whole
	}
}

func (s some) putPort(at int, port uint16) {
	if port != 0 {
		s.put(at, binary.BigEndian.AppendUint16(nil, port)...)
	}
}

// part returns n bytes from an offset; what lies behind the end is not known.
func (s some) part(at, n uint32) some {
	out := unknown(int(n))
	for i := range out.bytes {
		if j := int(at) + i; j < len(s.bytes) {
			out.bytes[i], out.known[i] = s.bytes[j], s.known[j]
		}
	}
	return out
}

func (s some) isKnown() bool {
	for _, k := range s.known {
		if k != whole {
			return false
		}
	}
	return true
}

// network is the IP header.
func (p Packet) network() some {
	put := func(s some, at int, a netip.Addr) {
		if a.IsValid() {
			s.put(at, a.AsSlice()...)
		}
	}
	if p.family() == nft.IPv4 { // RFC 791 section 3.1
		s := unknown(20)
		s.put(0, 0x45)
		copy(s.known[6:], []byte{0x1f, whole}) // it is no later fragment
		s.put(9, p.Protocol)
		put(s, 12, p.Src)
		put(s, 16, p.Dst)
		return s
	}
	s := unknown(40) // RFC 8200 section 3
	s.put(6, p.Protocol)
	put(s, 8, p.Src)
	put(s, 24, p.Dst)
	return s
}

// transport is what follows the IP header.
func (p Packet) transport() some {
	s := unknown(20)
	s.putPort(0, p.SrcPort)
	s.putPort(2, p.DstPort)
	if p.Protocol == unix.IPPROTO_TCP {
		s.put(13, tcpSYN)
	}
	return s
}

// tcpSYN are the flags of the first segment (RFC 9293 section 3.1).
const tcpSYN = 0x02
