package userspace

import (
	"bytes"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/encap"
)

// The suites of this file run over every implementation of queue and writer: those in memory here, the
// real ones in conform_linux_test.go. Those of the carriers' seam are in dataplane/carrier/carriertest.

// What a test does at the other end of a seam.
type (
	feed  func(b []byte)        // gives a packet to the implementation
	fetch func() (whole []byte) // returns what the implementation gave next
)

// pollute makes every field of a packet differ from what its reader is to make of it.
func pollute(p *carrier.Packet) {
	*p = carrier.Packet{At: 1, Offload: encap.Offload{GSO: encap.GSOUDP, Size: 9, Partial: true, CsumStart: 9, CsumOffset: 9, HdrLen: 9, MaxLen: 9}}
}

// conformQueue checks a queue that is fed by the other end. The packets have headroom bytes in front.
func conformQueue(t *testing.T, q queue, headroom int, in feed, answered fetch) {
	t.Helper()
	flushed := 0
	flush := func() { flushed++ }
	for i, size := range []int{100, 28, 1400, 29} {
		want := udpPacket(podA, podB, uint16(i), 2, make([]byte, size))
		in(want)
		p := readOwn(t, q, flush)
		if p.At != headroom || p.Offload != (encap.Offload{}) || !bytes.Equal(p.IP(), want) || len(p.Datagram()) != encap.HeaderLen+len(want) {
			t.Errorf("packet %d: at %d, %+v, %x, want %x", i, p.At, p.Offload, p.IP(), want)
		}
		pollute(p) // whatever was done to one packet is not in the next
		flushed = 0
	}
	answer := udpPacket(podB, podA, 3, 4, []byte("answer"))
	q.Answer(&carrier.Packet{Buf: append(make([]byte, headroom), answer...), At: headroom})
	if got := answered(); !bytes.Equal(got, answer) {
		t.Errorf("answered %x, want %x", got, answer)
	}
	q.stop()
	for range 2 {
		if _, err := q.Read(flush); err == nil {
			t.Error("Read after stop succeeded")
		}
	}
	if flushed == 0 {
		t.Error("what was put off for the last packet was not flushed")
	}
}

// readOwn reads the next packet that a test sent, and not the host's own chatter.
func readOwn(t *testing.T, q queue, flush func()) *carrier.Packet {
	t.Helper()
	for {
		p, err := q.Read(flush)
		if err != nil {
			t.Fatal(err)
		}
		if b := p.IP(); len(b) > 20 && b[0] == 0x45 && b[9] == encap.ProtoUDP {
			return p
		}
	}
}

// conformWriter checks a writer whose packets come out at the other end.
func conformWriter(t *testing.T, w writer, out fetch) {
	t.Helper()
	var c carrier.Counters
	var sent uint64
	for name, b := range map[string][]byte{
		"UDP":          udpPacket(podA, podB, 1, 2, []byte("hello")),
		"TCP":          tcpPacket(podA, podB, 7, []byte("hello")),
		"one byte":     udpPacket(podA, podB, 1, 2, []byte{1}),
		"partial":      makePartial(udpPacket(podA, podB, 1, 2, []byte("hello"))),
		"long partial": makePartial(tcpPacket(podA, podB, 7, make([]byte, 1300))),
	} {
		want := bytes.Clone(b)
		p := bufOf(b)
		var ip encap.IP
		if err := encap.ParseIP(p.IP(), &ip); err != nil {
			t.Fatal(err)
		}
		if encap.IsPartial(p.IP(), &ip) {
			p.Offload, _ = encap.PartialOffload(p.IP(), &ip)
			encap.CompleteChecksum(want, &ip)
		}
		w.Write(&p, &ip, &c)
		w.Flush(&c)
		sent += uint64(len(want))
		if got := out(); !bytes.Equal(got, want) {
			t.Errorf("%s: got %x, want %x", name, got, want)
		}
	}
	w.Flush(&c) // nothing is left
	c.Publish()
	var s dataplane.Stats
	if c.AddTo(&s.RxPackets, &s.RxBytes, &s); s != (dataplane.Stats{RxPackets: 5, RxBytes: sent}) {
		t.Errorf("counted %+v, want 5 packets of %d bytes", s, sent)
	}
}

// TestMemoryConforms runs the suites over what is in memory.
func TestMemoryConforms(t *testing.T) {
	for _, offloads := range []Offloads{0, AllOffloads} {
		t.Run(offloads.String(), func(t *testing.T) {
			a, _ := testPairOf(t, offloads)
			var got [][]byte
			next := func() (first []byte) {
				if len(got) > 0 {
					first, got = got[0], got[1:]
				}
				return first
			}
			note := func(b []byte) { got = append(got, bytes.Clone(b)) }
			a.OnPacket = note
			conformQueue(t, &a.end, encap.HeaderLen, func(b []byte) { a.Load(b); a.end.Rewind(1) }, next)
			a.OnPacket = nil
			a.OnOffload = func(p []byte, o encap.Offload) {
				if note(p); o.Partial {
					o.Complete(got[len(got)-1])
				}
			}
			conformWriter(t, a.end.newWriter(), next)
		})
	}
}
