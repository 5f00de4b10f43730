package userspace

import (
	"math/bits"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// maxSegments is the number of datagrams that a batch holds at most.
const maxSegments = 1024

// maxSegmentHeader is what a segment of a superpacket has in front of its payload.
const maxSegmentHeader = headroom + encap.MaxSplitHeader

// segment is one datagram of a batch: headers and the payload that follows them.
// Both are borrowed; for an ordinary packet all of it is head.
type segment struct {
	head, payload []byte
	next          int16 // segment of the same run, or 0
}

// run is what one UDP_SEGMENT message carries: datagrams of one size, the last
// maybe shorter, to one VTEP by one socket.
type run struct {
	entry       *entry
	first, last int16 // segments; first is never 0
	next        int16 // run of the same socket, or 0
	n           int16 // segments
	ecn         encap.ECN
	closed      bool // nothing may follow: it is full, or the last segment is short
	size, bytes int  // of the first segment, and of all
	packets     int  // that it carries; a superpacket goes with its last segment
	carried     int  // bytes of these packets
}

// transmitter sends what a batch has collected.
type transmitter interface{ transmit(b *batch, c *counters) }

// batch is a sender that collects runs and leaves it to a transmitter to send them.
// The runs of one socket are sent in their order, so that a flow stays in order:
// its packets all go by one socket.
type batch struct {
	transmitter
	limit    encap.RunLimit
	splitter encap.Splitter

	segments [maxSegments + 1]segment // 0 is none
	runs     [maxSegments + 1]run     // 0 is none
	nSegs    int
	nRuns    int
	sockets  uint32                               // bit set: those that have runs
	head     [sendSockets + 1]int16               // first run of each socket
	tail     [sendSockets + 1]int16               // and the last, the only one that can grow
	headers  [maxSegments * maxSegmentHeader]byte // of the segments of superpackets
	nHeader  int
}

func newBatch(t transmitter, limit encap.RunLimit) *batch {
	return &batch{transmitter: t, limit: limit}
}

// Send implements sender.
func (b *batch) Send(p *packet, e *entry, fragment bool, c *counters) {
	ip := p.ip()
	socket := int(encap.QuickHash(ip) % sendSockets)
	if fragment {
		socket = fragmentSocket
	}
	if p.GSO != encap.GSONone {
		b.split(p, e, socket, c)
		return
	}
	if p.Partial {
		complete(ip[p.CsumStart:], int(p.CsumOffset))
	}
	if b.nSegs == maxSegments {
		b.Flush(c)
	}
	r := b.runFor(socket, e, encap.PacketECN(ip), len(p.buf))
	b.add(r, p.buf, nil)
	r.packets++
	r.carried += len(ip)
	r.closed = r.closed || len(p.buf) < r.size
}

// Flush implements sender.
func (b *batch) Flush(c *counters) {
	if b.nSegs == 0 {
		return
	}
	b.transmit(b, c)
	for s := b.sockets; s != 0; s &= s - 1 {
		i := bits.TrailingZeros32(s)
		b.head[i], b.tail[i] = 0, 0
	}
	b.nSegs, b.nRuns, b.nHeader, b.sockets = 0, 0, 0, 0
}

// split adds the segments of a superpacket: to the run of the one before it as far
// as that has room, which in a stream it has, then in runs of even length. The
// payload is not copied.
func (b *batch) split(p *packet, e *entry, socket int, c *counters) {
	if b.splitter.InitOffload(p.ip(), p.Offload) != nil {
		c.drop(dataplane.DropBadHeader)
		return
	}
	size := headroom + b.splitter.HeaderLen() + int(p.Size)
	ecn := encap.PacketECN(p.ip())
	if b.nSegs == maxSegments {
		b.Flush(c)
	}
	r := b.runFor(socket, e, ecn, size)
	if r.size != size {
		r = b.newRun(socket, e, ecn, size)
	}
	for {
		for range min(b.room(r), maxSegments-b.nSegs) {
			b.addNext(r, p.buf[:headroom])
		}
		if b.splitter.Left() == 0 {
			break
		}
		if b.nSegs == maxSegments {
			b.Flush(c)
		}
		r = b.newRun(socket, e, ecn, size)
	}
	r.closed = r.bytes != int(r.n)*size
	r.packets++
	r.carried += len(p.ip())
	c.offload.TxSuperpackets++
	c.offload.TxSegments += uint64(b.splitter.Segments())
}

// room returns how many of the splitter's segments go to run r.
func (b *batch) room(r *run) int {
	if r.n == 0 {
		return b.splitter.RunLen(b.limit)
	}
	return min(b.splitter.Left(), b.limit.Datagrams-int(r.n), (b.limit.Bytes-r.bytes)/r.size)
}

// addNext adds the next segment of the splitter, behind the given VXLAN and
// Ethernet header.
func (b *batch) addNext(r *run, header []byte) {
	h := b.headers[b.nHeader:][:maxSegmentHeader]
	b.nHeader += maxSegmentHeader
	copy(h, header)
	n, payload, _ := b.splitter.Next(h[headroom:])
	b.add(r, h[:headroom+n], payload)
}

// runFor returns the run that a datagram of size bytes goes to.
func (b *batch) runFor(socket int, e *entry, ecn encap.ECN, size int) *run {
	if t := b.tail[socket]; t != 0 {
		r := &b.runs[t]
		if !r.closed && r.entry == e && r.ecn == ecn && size <= r.size &&
			int(r.n) < b.limit.Datagrams && r.bytes+size <= b.limit.Bytes {
			return r
		}
	}
	return b.newRun(socket, e, ecn, size)
}

func (b *batch) newRun(socket int, e *entry, ecn encap.ECN, size int) *run {
	b.nRuns++
	i := int16(b.nRuns)
	r := &b.runs[i]
	*r = run{entry: e, ecn: ecn, size: size}
	if t := b.tail[socket]; t != 0 {
		b.runs[t].next = i
	} else {
		b.head[socket] = i
		b.sockets |= 1 << socket
	}
	b.tail[socket] = i
	return r
}

func (b *batch) add(r *run, head, payload []byte) {
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
