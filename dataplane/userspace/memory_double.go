package userspace

import (
	"context"
	"errors"
	"math/bits"
	"net/netip"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// Memory is a test double: the userspace dataplane without a device and without sockets, the same
// workers between slices in memory. It is for tests and benchmarks that
// have no root and no Linux. Its methods are not for concurrent use, except Sync and Stats.
type Memory struct {
	core   *core
	worker receiveWorker
	end    memoryEnd

	// OnDatagram, if not nil, gets each datagram that is sent, borrowed, and where to.
	OnDatagram func(datagram []byte, to netip.Addr)
	// OnPacket, if not nil, gets each packet that is delivered, borrowed.
	OnPacket func(packet []byte)
	// OnOffload, if not nil, gets it too, with what is left to do to it.
	OnOffload func(packet []byte, o encap.Offload)

	vnet    bool // the device has vnet headers
	joins   bool // what is delivered is joined
	scratch []byte
}

// Datagram is one UDP payload from the underlay, or several of them.
type Datagram struct {
	Payload []byte
	From    netip.Addr
	ECN     encap.ECN // of the outer header
	GRO     int       // what UDP_GRO says, 0 if nothing: length of each datagram in Payload
}

// NewMemory makes a Memory of Underlays, VNI, Port, MTU and Offloads of cfg; it receives
// over the first of the underlays. With
// UDPSegment superpackets are split and sent in batches, with TUNVnet packets are
// delivered with what Coalesce makes of them.
func NewMemory(cfg Config) *Memory {
	m := &Memory{vnet: cfg.Offloads.has(TUNVnet), joins: cfg.Offloads.has(Coalesce)}
	m.end.device = (*memoryDevice)(m)
	var carriers []description
	var senders []sender
	for _, u := range cfg.Underlays {
		carriers = append(carriers, description{name: "memory", family: familyOf(u.Local), headroom: encap.HeaderLen})
		s := sender((*memorySender)(m))
		if cfg.Offloads.has(UDPSegment) {
			s = newBatcher((*memorySender)(m), encap.RunLimit{Datagrams: encap.MaxRunDatagramsNew, Bytes: encap.MaxRunBytes})
		}
		senders = append(senders, s)
	}
	m.core = newCore(cfg, carriers, 1)
	m.core.send[0].queue, m.core.send[0].senders = &m.end, senders
	m.worker.receiver = &m.end
	m.worker.attach(cfg.VNI, m.core.newLane(carriers[0].family, &m.end, m.end.newWriter()))
	return m
}

// VTEPs returns what the others are to know about m.
func (m *Memory) VTEPs() []dataplane.VTEP {
	return m.core.published()
}

// Sync replaces the forwarding table.
func (m *Memory) Sync(w dataplane.Wanted) error { return m.core.sync(w) }

// Stats returns the counters.
func (m *Memory) Stats() (s dataplane.Stats) {
	m.core.addTo(&s)
	m.worker.addTo(&s.RxPackets, &s.RxBytes, &s)
	return s
}

// Load sets what the device hands out, in turn and again from the start. The
// packets are copied.
func (m *Memory) Load(packets ...[]byte) { m.LoadOffload(encap.Offload{}, packets...) }

// LoadOffload is Load for packets that all leave the same to be done, such as
// superpackets. They need UDPSegment.
func (m *Memory) LoadOffload(o encap.Offload, packets ...[]byte) {
	m.end.packets = nil
	for _, p := range packets {
		m.end.packets = append(m.end.packets, packet{buf: append(make([]byte, encap.HeaderLen), p...), at: encap.HeaderLen, Offload: o})
	}
}

// LoadDatagrams sets what the underlay hands out, in turn and again from the
// start. The payloads are borrowed, and may be changed if their checksums are
// partial: hand over fresh ones if that matters.
func (m *Memory) LoadDatagrams(ds ...Datagram) { m.end.datagrams = ds }

// reset makes the next run start with what was loaded first.
func (e *memoryEnd) reset(n int) {
	e.left, e.next = n, -1
	e.cutter = cutter{}
}

// Send runs the sending worker over n of the loaded packets.
func (m *Memory) Send(n int) {
	m.end.reset(n)
	_ = m.core.send[0].run(context.Background(), endOnError) // it only ever ends with errEnd
}

// Receive runs the receiving worker over n of the loaded datagrams.
func (m *Memory) Receive(n int) {
	m.end.reset(n)
	_ = m.worker.run(context.Background(), endOnError)
}

var errEnd = errors.New("no more packets")

func endOnError(_ context.Context, err error) error { return err }

// memoryEnd is queue, receiver and guesser of a Memory.
type memoryEnd struct {
	socketGuesser
	device     *memoryDevice
	packets    []packet
	datagrams  []Datagram
	left, next int
	cutter     cutter
}

// Read implements queue.
func (e *memoryEnd) Read(flush func()) (*packet, error) {
	if !e.turn(len(e.packets), flush) {
		return nil, errEnd
	}
	return &e.packets[e.next], nil
}

// Answer implements queue.
func (e *memoryEnd) Answer(p *packet) { e.device.deliver(p.ip(), encap.Offload{}) }

// newWriter implements queue.
func (e *memoryEnd) newWriter() writer {
	if e.device.vnet {
		return newVnetWriter(e.device, e.device.joins, e.device.joins)
	}
	return newPlain(e.device)
}

// stop implements queue and receiver.
func (e *memoryEnd) stop() { e.left = 0 }

// Receive implements receiver.
func (e *memoryEnd) Receive(d *datagram, flush func()) error {
	for !e.cutter.next() {
		if !e.turn(len(e.datagrams), flush) {
			return errEnd
		}
		from := &e.datagrams[e.next]
		e.cutter.from, e.cutter.ecn = from.From, from.ECN
		e.cutter.init(from.Payload, from.GRO)
	}
	*d = e.cutter.datagram
	return nil
}

// turn moves next to the next of n, unless it was the last time.
func (e *memoryEnd) turn(n int, flush func()) bool {
	if e.left <= 0 || n == 0 {
		flush()
		return false
	}
	e.left--
	if e.next++; e.next >= n {
		flush()
		e.next = 0
	}
	return true
}

// memorySender is the sender of a Memory, and its transmitter.
type memorySender Memory

// Send implements sender.
func (s *memorySender) Send(p *packet, e *entry, _ bool, c *counters) {
	if s.OnDatagram != nil {
		s.OnDatagram(p.datagram(), e.peer.addr)
	}
	c.carried(len(p.buf) - p.at)
}

// Flush implements sender.
func (s *memorySender) Flush(*counters) {}

// transmit implements transmitter.
func (s *memorySender) transmit(b *batcher, c *counters) {
	for ports := b.ports; ports != 0; ports &= ports - 1 {
		for i := b.head[bits.TrailingZeros32(ports)]; i != 0; i = b.runs[i].next {
			r := &b.runs[i]
			for j := r.first; j != 0 && s.OnDatagram != nil; j = b.segments[j].next {
				s.scratch = append(append(s.scratch[:0], b.segments[j].head...), b.segments[j].payload...)
				s.OnDatagram(s.scratch, r.entry.peer.addr)
			}
			c.carriedAll(r.packets, r.carried)
		}
	}
}

// memoryDevice is the device of a Memory.
type memoryDevice Memory

// Write takes one complete packet.
func (d *memoryDevice) Write(b []byte) (int, error) {
	d.deliver(b, encap.Offload{})
	return len(b), nil
}

// writeParts implements vnetDevice.
func (d *memoryDevice) writeParts(h *[vnetLen]byte, parts [][]byte) (ok, refused bool) {
	if d.OnPacket == nil && d.OnOffload == nil {
		return true, false
	}
	d.scratch = d.scratch[:0]
	for _, part := range parts {
		d.scratch = append(d.scratch, part...)
	}
	d.deliver(d.scratch, decodeVnet(h[:], d.scratch))
	return true, false
}

func (d *memoryDevice) deliver(b []byte, o encap.Offload) {
	if d.OnPacket != nil {
		d.OnPacket(b)
	}
	if d.OnOffload != nil {
		d.OnOffload(b, o)
	}
}
