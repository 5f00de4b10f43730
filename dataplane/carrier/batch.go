package carrier

import (
	"math/bits"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/capture"
	"github.com/overlayd/overlayd/encap"
)

const (
	// sourcePorts is the number of outer source ports among which flows are spread. A power of two.
	sourcePorts = 16
	// fragmentPort is one more, for what is too long and may be fragmented.
	fragmentPort = sourcePorts
)

// maxSegments is the number of datagrams that a batch holds at most.
const maxSegments = 1024

// maxSegmentHeader is what a segment of a superpacket has in front of its payload.
const maxSegmentHeader = encap.HeaderLen + encap.MaxSplitHeader

// segment is one datagram of a batch: headers and the payload that follows them.
// Both are borrowed; for an ordinary packet all of it is head.
type segment struct {
	head, payload []byte
	next          int16 // segment of the same run, or 0
	ends          int32 // bytes of the packet of which this is the last segment; 0: it is not the last
}

// run is what one UDP_SEGMENT message carries: datagrams of one size, the last
// maybe shorter, to one VTEP by one source port.
type run struct {
	entry       *Entry
	first, last int16 // segments; first is never 0
	next        int16 // run of the same source port, or 0
	n           int16 // segments
	ecn         encap.ECN
	closed      bool // nothing may follow: it is full, or the last segment is short
	size, bytes int  // of the first segment, and of all
	packets     int  // that it carries; a superpacket goes with its last segment
	carried     int  // bytes of these packets
}

// transmitter sends what a batch has collected.
type transmitter interface{ transmit(b *batcher, c *Counters) }

// batcher is a sender that collects runs to a batch and leaves it to a transmitter to send them.
// The runs of one source port are sent in their order, so that a flow stays in order:
// its packets all go by one source port. Those of an IPv6 flow that have extension headers may go by another one.
type batcher struct {
	transmitter
	limit    encap.RunLimit
	splitter encap.Splitter

	segments [maxSegments + 1]segment // the first is not used: index 0 means nothing
	runs     [maxSegments + 1]run     // the first is not used: index 0 means nothing
	nSegs    int
	nRuns    int
	ports    uint32                               // bit set: the source ports that have runs
	head     [sourcePorts + 1]int16               // first run of each source port
	tail     [sourcePorts + 1]int16               // and the last, the only one that can grow
	headers  [maxSegments * maxSegmentHeader]byte // of the segments of superpackets
	nHeader  int
}

func newBatcher(t transmitter, limit encap.RunLimit) *batcher {
	return &batcher{transmitter: t, limit: limit}
}

// Send implements Sender.
func (b *batcher) Send(p *Packet, e *Entry, fragment bool, c *Counters) {
	ip := p.IP()
	port := int(encap.QuickHash(ip) % sourcePorts)
	if fragment {
		port = fragmentPort
	}
	if p.GSO != encap.GSONone {
		b.split(p, e, port, c)
		return
	}
	if p.Partial {
		p.Complete(ip)
	}
	if b.nSegs == maxSegments {
		b.Flush(c)
	}
	d := p.Datagram()
	r := b.runFor(port, e, encap.PacketECN(ip), len(d))
	b.add(r, d, nil)
	b.end(r, len(ip))
	r.closed = r.closed || len(d) < r.size
}

// Flush implements Sender.
func (b *batcher) Flush(c *Counters) {
	if b.nSegs == 0 {
		return
	}
	b.transmit(b, c)
	for s := b.ports; s != 0; s &= s - 1 {
		i := bits.TrailingZeros32(s)
		b.head[i], b.tail[i] = 0, 0
	}
	b.nSegs, b.nRuns, b.nHeader, b.ports = 0, 0, 0, 0
}

// split adds the segments of a superpacket: to the run of the one before it as far
// as that has room, which in a stream it has, then in runs of even length. The
// payload is not copied.
func (b *batcher) split(p *Packet, e *Entry, port int, c *Counters) {
	if b.splitter.InitOffload(p.IP(), p.Offload) != nil {
		c.DropPacket(p.IP(), e.Peer.Addr, dataplane.DropBadHeader)
		return
	}
	size := encap.HeaderLen + b.splitter.HeaderLen() + int(p.Size)
	ecn := encap.PacketECN(p.IP())
	if b.nSegs == maxSegments {
		b.Flush(c)
	}
	r := b.runFor(port, e, ecn, size)
	if r.size != size {
		r = b.newRun(port, e, ecn, size)
	}
	for {
		for range min(b.room(r), maxSegments-b.nSegs) {
			b.addNext(r, p.Datagram()[:encap.HeaderLen])
		}
		if b.splitter.Left() == 0 {
			break
		}
		if b.nSegs == maxSegments {
			b.Flush(c)
		}
		r = b.newRun(port, e, ecn, size)
	}
	r.closed = r.bytes != int(r.n)*size
	b.end(r, len(p.IP()))
	c.Offload.TxSuperpackets++
	c.Offload.TxSegments += uint64(b.splitter.Segments())
}

// room returns how many of the splitter's segments go to run r.
func (b *batcher) room(r *run) int {
	if r.n == 0 {
		return b.splitter.RunLen(b.limit)
	}
	return min(b.splitter.Left(), b.limit.Datagrams-int(r.n), (b.limit.Bytes-r.bytes)/r.size)
}

// addNext adds the next segment of the splitter, behind the given VXLAN and
// Ethernet header.
func (b *batcher) addNext(r *run, header []byte) {
	h := b.headers[b.nHeader:][:maxSegmentHeader]
	b.nHeader += maxSegmentHeader
	copy(h, header)
	n, payload, _ := b.splitter.Next(h[encap.HeaderLen:])
	b.add(r, h[:encap.HeaderLen+n], payload)
}

// runFor returns the run that a datagram of size bytes goes to.
func (b *batcher) runFor(port int, e *Entry, ecn encap.ECN, size int) *run {
	if t := b.tail[port]; t != 0 {
		r := &b.runs[t]
		if !r.closed && r.entry == e && r.ecn == ecn && size <= r.size &&
			int(r.n) < b.limit.Datagrams && r.bytes+size <= b.limit.Bytes {
			return r
		}
	}
	return b.newRun(port, e, ecn, size)
}

func (b *batcher) newRun(port int, e *Entry, ecn encap.ECN, size int) *run {
	b.nRuns++
	i := int16(b.nRuns)
	r := &b.runs[i]
	*r = run{entry: e, ecn: ecn, size: size}
	if t := b.tail[port]; t != 0 {
		b.runs[t].next = i
	} else {
		b.head[port] = i
		b.ports |= 1 << port
	}
	b.tail[port] = i
	return r
}

// end counts a packet of that many bytes, of which the run has the last segment.
func (b *batcher) end(r *run, bytes int) {
	b.segments[r.last].ends = int32(bytes)
	r.packets++
	r.carried += bytes
}

// drop counts the packets of a run that is not sent, and shows its datagrams.
func (b *batcher) drop(r *run, why dataplane.Drop, c *Counters) {
	c.DropAll(r.packets, why)
	t := c.Tap()
	if t == nil {
		return
	}
	m := capture.Meta{Verdict: capture.Dropped(why), Form: capture.Datagram, Peer: r.entry.Peer.Addr}
	for i := r.first; ; i = b.segments[i].next {
		t.Show(m, b.segments[i].head, b.segments[i].payload)
		if i == r.last {
			return
		}
	}
}

func (b *batcher) add(r *run, head, payload []byte) {
	b.nSegs++
	i := int16(b.nSegs)
	b.segments[i] = segment{head: head, payload: payload}
	if r.n == 0 {
		r.first = i
	} else {
		b.segments[r.last].next = i
	}
	r.last = i
	r.n++
	r.bytes += len(head) + len(payload)
}
