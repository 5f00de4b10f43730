package carrier

import (
	"errors"
	"math/bits"
	"net/netip"

	"github.com/overlayd/overlayd/encap"
)

// Wire is a test double of a carrier's two ends: what is sent is handed to a function, and what is
// received was loaded before. It is for tests and benchmarks that have no root and no Linux.
type Wire struct {
	// OnDatagram, if not nil, gets each datagram that is sent, borrowed, and where to.
	OnDatagram func(datagram []byte, to netip.Addr)

	in      wireReceiver
	scratch []byte
}

// Arrival is what one receive from the underlay brings: a UDP payload, or several of them.
type Arrival struct {
	Payload []byte
	From    netip.Addr
	ECN     encap.ECN // of the outer header
	GRO     int       // what UDP_GRO says, 0 if nothing: length of each datagram in Payload
}

// LoadDatagrams sets what the underlay hands out, in turn and again from the
// start. The payloads are borrowed, and may be changed if their checksums are
// partial: hand over fresh ones if that matters.
func (w *Wire) LoadDatagrams(as ...Arrival) { w.in.arrivals = as }

// Rewind lets the receiver hand out n arrivals, from the first one on.
func (w *Wire) Rewind(n int) {
	w.in.Reel.Rewind(n)
	w.in.cutter = cutter{}
}

// Receiver returns the receiver of what was loaded. It ends with ErrEnd, and guesses as the receiver of
// a socket does.
func (w *Wire) Receiver() Receiver { return &w.in }

// Sender returns a sender that takes each packet as it is, or one that splits superpackets and
// makes batches, as the sender of sockets with UDP_SEGMENT does.
func (w *Wire) Sender(batches bool) Sender {
	if batches {
		return newBatcher((*wireSender)(w), encap.RunLimit{Datagrams: encap.MaxRunDatagramsNew, Bytes: encap.MaxRunBytes})
	}
	return (*wireSender)(w)
}

// ErrEnd says that a test double has handed out all that it was to.
var ErrEnd = errors.New("no more packets")

// Reel counts what a test double hands out, in turn and again from the start.
type Reel struct{ left, next int }

// Rewind lets n be handed out, from the first one on; 0: nothing more.
func (r *Reel) Rewind(n int) { r.left, r.next = n, -1 }

// Turn returns the index of the next of n, or is false after the last. It calls flush before
// anything comes again, and at the end.
func (r *Reel) Turn(n int, flush func()) (i int, ok bool) {
	if r.left <= 0 || n == 0 {
		flush()
		return 0, false
	}
	r.left--
	if r.next++; r.next >= n {
		flush()
		r.next = 0
	}
	return r.next, true
}

// wireReceiver is the receiver of a Wire.
type wireReceiver struct {
	Reel
	socketGuesser
	arrivals []Arrival
	cutter   cutter
}

// Receive implements Receiver.
func (w *wireReceiver) Receive(d *Datagram, flush func()) error {
	for !w.cutter.next() {
		i, ok := w.Turn(len(w.arrivals), flush)
		if !ok {
			return ErrEnd
		}
		a := &w.arrivals[i]
		w.cutter.From, w.cutter.ECN = a.From, a.ECN
		w.cutter.init(a.Payload, a.GRO)
	}
	*d = w.cutter.Datagram
	return nil
}

// Stop implements Receiver.
func (w *wireReceiver) Stop() { w.Rewind(0) }

// wireSender is the sender of a Wire, and its transmitter.
type wireSender Wire

// Send implements Sender. It counts for no peer, as a transmitter does for each run.
func (s *wireSender) Send(p *Packet, e *Entry, _ bool, c *Counters) {
	if s.OnDatagram != nil {
		s.OnDatagram(p.Datagram(), e.Peer.Addr)
	}
	c.Carried(len(p.Buf) - p.At)
}

// Flush implements Sender.
func (s *wireSender) Flush(*Counters) {}

// transmit implements transmitter.
func (s *wireSender) transmit(b *batcher, c *Counters) {
	for ports := b.ports; ports != 0; ports &= ports - 1 {
		for i := b.head[bits.TrailingZeros32(ports)]; i != 0; i = b.runs[i].next {
			r := &b.runs[i]
			for j := r.first; j != 0 && s.OnDatagram != nil; j = b.segments[j].next {
				s.scratch = append(append(s.scratch[:0], b.segments[j].head...), b.segments[j].payload...)
				s.OnDatagram(s.scratch, r.entry.Peer.Addr)
			}
			c.Sent(r.entry.Peer, r.packets, r.carried)
		}
	}
}
