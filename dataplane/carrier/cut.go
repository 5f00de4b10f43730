package carrier

import "github.com/overlayd/overlayd/encap"

// cutter hands out the datagrams that one receive brought, one by one. A receive
// with UDP_GRO brings datagrams of one length, the last maybe shorter, or, with the
// very same mark, a UDP superpacket that a vxlan peer on this machine sent whole.
type cutter struct {
	Datagram        // From, ECN and Offload are those of all
	left     []byte // not handed out yet
	size     int    // of each datagram
	more     bool   // there is one, though it may be empty
}

// init takes what was received, and the length that the kernel gave, 0 without.
func (c *cutter) init(b []byte, gro int) {
	c.left, c.size, c.Offload, c.more = b, len(b), encap.Offload{}, true
	if gro <= 0 || gro >= len(b) {
		return
	}
	// The length tells them apart: the packet in the first datagram of a batch is
	// no longer than that, and a superpacket fills all of b.
	if innerLen(b) == len(b) {
		c.Offload = encap.Offload{GSO: encap.GSOUDP, Size: uint16(gro)}
	} else {
		c.size = gro
	}
}

// next makes c.Buf the next datagram, and is false after the last.
func (c *cutter) next() bool {
	if !c.more {
		return false
	}
	n := min(c.size, len(c.left))
	c.Buf, c.left = c.left[:n:n], c.left[n:]
	c.more = len(c.left) > 0
	return true
}

// innerLen returns the length that the first datagram of b needs by the IP header
// of its packet, or 0 if it has none.
func innerLen(b []byte) int {
	if len(b) < encap.HeaderLen {
		return 0
	}
	var ip encap.IP
	if encap.ParseIP(b[encap.HeaderLen:], &ip) != nil {
		return 0
	}
	return encap.HeaderLen + ip.Len
}
