package userspace

import (
	"context"
	"errors"
	"net/netip"

	"github.com/overlayd/overlayd/dataplane"
)

// Memory is the userspace dataplane without a device and without sockets: the same
// workers, between slices in memory. It is for tests and benchmarks that
// have no root. Its methods are not for concurrent use, except Sync and Stats.
type Memory struct {
	core *core
	end  memoryEnd

	// OnDatagram, if not nil, gets each datagram that is sent, borrowed, and where to.
	OnDatagram func(datagram []byte, to netip.Addr)
	// OnPacket, if not nil, gets each packet that is delivered, borrowed.
	OnPacket func(packet []byte)
}

// Datagram is one UDP payload from the underlay.
type Datagram struct {
	Payload []byte
	From    netip.Addr
}

// NewMemory makes a Memory of Public, VNI, Port and MTU of cfg.
func NewMemory(cfg Config) *Memory {
	m := &Memory{core: newCore(cfg)}
	m.end.plain = newPlain((*memoryDevice)(m))
	m.core.send.queue, m.core.send.sender = &m.end, (*memorySender)(m)
	m.core.receive.queue, m.core.receive.receiver = &m.end, &m.end
	return m
}

// VTEPs returns what the others are to know about m.
func (m *Memory) VTEPs() []dataplane.VTEP {
	return []dataplane.VTEP{{Addr: m.core.public, MAC: m.core.local.mac, VNI: m.core.local.vni}}
}

// Sync replaces the forwarding table.
func (m *Memory) Sync(w dataplane.Wanted) error { return m.core.sync(w) }

// Stats returns the counters.
func (m *Memory) Stats() dataplane.Stats {
	return stats(&m.core.send.counters, &m.core.receive.counters)
}

// Load sets what the device hands out, in turn and again from the start. The
// packets are copied.
func (m *Memory) Load(packets ...[]byte) {
	m.end.packets = nil
	for _, p := range packets {
		m.end.packets = append(m.end.packets, packet{buf: append(make([]byte, headroom), p...)})
	}
}

// LoadDatagrams sets what the underlay hands out, in turn and again from the
// start. The payloads are borrowed, and may be changed where their checksums are
// partial: hand over fresh ones where that matters.
func (m *Memory) LoadDatagrams(ds ...Datagram) { m.end.datagrams = ds }

// Send runs the sending worker over n of the loaded packets.
func (m *Memory) Send(n int) {
	m.end.left, m.end.next = n, -1
	_ = m.core.send.run(context.Background(), endOnError) // it only ever ends with errEnd
}

// Receive runs the receiving worker over n of the loaded datagrams.
func (m *Memory) Receive(n int) {
	m.end.left, m.end.next = n, -1
	_ = m.core.receive.run(context.Background(), endOnError)
}

var errEnd = errors.New("no more packets")

func endOnError(_ context.Context, err error) error { return err }

// memoryEnd is queue and receiver of a Memory.
type memoryEnd struct {
	*plain
	packets    []packet
	datagrams  []Datagram
	left, next int
}

func (e *memoryEnd) Read(p *packet, idle func()) error {
	if !e.turn(len(e.packets), idle) {
		return errEnd
	}
	*p = e.packets[e.next]
	return nil
}

func (e *memoryEnd) Receive(d *datagram, idle func()) error {
	if !e.turn(len(e.datagrams), idle) {
		return errEnd
	}
	d.buf, d.from = e.datagrams[e.next].Payload, e.datagrams[e.next].From
	return nil
}

// turn moves next to the next of n, unless it was the last time.
func (e *memoryEnd) turn(n int, idle func()) bool {
	if e.left <= 0 || n == 0 {
		idle()
		return false
	}
	e.left--
	if e.next++; e.next >= n {
		e.next = 0
	}
	return true
}

// memorySender is the sender of a Memory.
type memorySender Memory

func (s *memorySender) Send(p *packet, e *entry, c *counters) {
	if s.OnDatagram != nil {
		s.OnDatagram(p.buf, e.addr)
	}
	c.carried(len(p.ip()))
}

// memoryDevice is the device of a Memory.
type memoryDevice Memory

func (d *memoryDevice) Write(b []byte) (int, error) {
	if d.OnPacket != nil {
		d.OnPacket(b)
	}
	return len(b), nil
}
