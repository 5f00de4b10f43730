package carrier

import (
	"sync/atomic"

	"github.com/overlayd/overlayd/dataplane/uplink"
	"github.com/overlayd/overlayd/encap"
)

// tunnelSender sends superpackets by an uplink, and all other packets by the sockets of its batcher. Both have the same
// source ports.
type tunnelSender struct {
	*batcher
	writer *uplink.Writer
	ports  *[sourcePorts + 1]atomic.Uint32 // of the sockets
	room   int                             // the longest inner packet that fits an outer IP packet
	id     uint16                          // of the next outer IPv4 header
	frame  uplink.Frame
}

// Send implements Sender.
func (s *tunnelSender) Send(p *Packet, e *Entry, fragment bool, c *Counters) {
	if p.GSO == encap.GSONone || fragment || !s.sendWhole(p, e, c) {
		s.batcher.Send(p, e, fragment, c)
	}
}

// sendWhole sends a superpacket by the uplink. It returns false if the sockets have to send it.
func (s *tunnelSender) sendWhole(p *Packet, e *Entry, c *Counters) bool {
	w := e.Peer.way.Load()
	if w == nil {
		if !e.Peer.wants.Load() {
			e.Peer.wants.Store(true)
		}
		return false
	}
	ip := p.IP()
	if p.At < uplink.Headroom+encap.HeaderLen || len(ip) > s.room || s.splitter.InitOffload(ip, p.Offload) != nil {
		return false // not a packet: the batcher drops it
	}
	if s.splitter.Segments() < 2 {
		return false // the kernel completes the outer checksum of what it cuts
	}
	n := s.splitter.HeaderLen()
	if n+int(p.Size)+encap.Overhead(e.Peer.Addr) > w.MTU {
		return false // the segments are too long: the sockets handle that
	}
	port := int(encap.QuickHash(ip) % sourcePorts)
	from := s.ports[port].Load()
	if from == 0 {
		return false // the sockets share one, and know no paths
	}
	if s.batcher.ports&(1<<port) != 0 {
		s.batcher.Flush(c) // earlier packets leave first
	}
	f := &s.frame
	f.OuterFields = encap.OuterFields{Port: uint16(from), ID: s.id, ECN: encap.PacketECN(ip)}
	f.GSO, f.Size, f.CsumStart, f.HeaderLen = p.GSO, p.Size, p.CsumStart, n
	f.CWR = p.GSO != encap.GSOUDP && ip[p.CsumStart+13]&0x80 != 0
	buf := p.Buf[:p.At+s.splitter.Len()] // what is behind the packet would become payload
	start := w.Put(buf, p.At-encap.HeaderLen, f)
	if s.writer.Write(w, buf[start:]) != 0 { // EAGAIN may be due to packets to other peers, such as dead ones: the sockets have buffers of their own
		c.Offload.Fallbacks++
		return false
	}
	s.id += uint16(s.splitter.Segments())
	c.Sent(e.Peer, 1, len(ip))
	c.Offload.TxSuperpackets++
	c.Offload.TxSegments += uint64(s.splitter.Segments())
	c.Offload.TxBatches++
	return true
}
