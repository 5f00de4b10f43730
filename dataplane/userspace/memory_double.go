package userspace

import (
	"context"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/encap"
)

// Memory is a test double: the userspace dataplane without a device and without sockets, the same
// workers between slices in memory. It is for tests and benchmarks that
// have no root and no Linux. Its methods are not for concurrent use, except Sync and Stats.
type Memory struct {
	carrier.Wire // in the place of the underlay
	core         *core
	worker       receiveWorker
	end          memoryEnd

	// OnPacket, if not nil, gets each packet that is delivered, borrowed.
	OnPacket func(packet []byte)
	// OnOffload, if not nil, gets it too, with what is left to do to it.
	OnOffload func(packet []byte, o encap.Offload)

	vnet    bool // the device has vnet headers
	joins   bool // what is delivered is joined
	scratch []byte
}

// NewMemory makes a Memory of Underlays, VNI, Port, SourceCheck, AnyPeerFrom, Captures and Offloads of cfg; it receives
// over the first of the underlays. With UDPSegment superpackets are split and sent in batches, with
// TUNVnet packets are delivered with what Coalesce makes of them.
func NewMemory(cfg Config) *Memory {
	m := &Memory{vnet: cfg.Offloads.has(TUNVnet), joins: cfg.Offloads.has(Coalesce)}
	m.end.device = (*memoryDevice)(m)
	var carriers []carrier.Description
	senders := make([]carrier.Sender, 0, len(cfg.Underlays))
	for _, u := range cfg.Underlays {
		carriers = append(carriers, carrier.Description{Family: carrier.FamilyOf(u.Local), Headroom: encap.HeaderLen})
		senders = append(senders, m.Sender(cfg.Offloads.has(UDPSegment)))
	}
	m.core = newCore(cfg, carriers, 1)
	m.core.send[0].queue, m.core.send[0].senders = &m.end, senders
	m.worker.receiver = m.Receiver()
	m.worker.attach(cfg.VNI, m.core.newLane(carriers[0].Family, m.worker.receiver, m.end.newWriter()))
	m.core.show()
	cfg.Captures.Join(0, &m.worker.Point)
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
	m.worker.AddTo(&s.RxPackets, &s.RxBytes, &s)
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
		m.end.packets = append(m.end.packets, carrier.Packet{Buf: append(make([]byte, encap.HeaderLen), p...), At: encap.HeaderLen, Offload: o})
	}
}

// Send runs the sending worker over n of the loaded packets.
func (m *Memory) Send(n int) {
	m.end.Rewind(n)
	_ = m.core.send[0].run(context.Background(), endOnError) // it only ever ends with ErrEnd
}

// Receive runs the receiving worker over n of the loaded datagrams.
func (m *Memory) Receive(n int) {
	m.Rewind(n)
	_ = m.worker.run(context.Background(), endOnError)
}

func endOnError(_ context.Context, err error) error { return err }

// memoryEnd is the queue of a Memory.
type memoryEnd struct {
	carrier.Reel
	device  *memoryDevice
	packets []carrier.Packet
}

// Read implements queue.
func (e *memoryEnd) Read(flush func()) (*carrier.Packet, error) {
	i, ok := e.Turn(len(e.packets), flush)
	if !ok {
		return nil, carrier.ErrEnd
	}
	return &e.packets[i], nil
}

// Answer implements queue.
func (e *memoryEnd) Answer(p *carrier.Packet) { e.device.deliver(p.IP(), encap.Offload{}) }

// stop implements queue.
func (e *memoryEnd) stop() { e.Rewind(0) }

// newWriter implements queue.
func (e *memoryEnd) newWriter() writer {
	if e.device.vnet {
		return newVnetWriter(e.device, e.device.joins, e.device.joins)
	}
	return newPlain(e.device)
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
