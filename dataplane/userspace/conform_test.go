package userspace

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// The suites of this file run over every implementation of a seam: those in memory here, the real
// ones in conform_linux_test.go.

// What a test does at the other end of a seam.
type (
	feed  func(b []byte)        // gives a packet or datagram to the implementation
	fetch func() (whole []byte) // returns what the implementation gave next
)

// pollute makes every field of a packet differ from what its reader is to make of it.
func pollute(p *packet) {
	*p = packet{at: 1, Offload: encap.Offload{GSO: encap.GSOUDP, Size: 9, Partial: true, CsumStart: 9, CsumOffset: 9, HdrLen: 9, MaxLen: 9}}
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
		if p.at != headroom || p.Offload != (encap.Offload{}) || !bytes.Equal(p.ip(), want) || len(p.datagram()) != encap.HeaderLen+len(want) {
			t.Errorf("packet %d: at %d, %+v, %x, want %x", i, p.at, p.Offload, p.ip(), want)
		}
		pollute(p) // whatever was done to one packet is not in the next
		flushed = 0
	}
	answer := udpPacket(podB, podA, 3, 4, []byte("answer"))
	q.Answer(&packet{buf: append(make([]byte, headroom), answer...), at: headroom})
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
func readOwn(t *testing.T, q queue, flush func()) *packet {
	t.Helper()
	for {
		p, err := q.Read(flush)
		if err != nil {
			t.Fatal(err)
		}
		if b := p.ip(); len(b) > 20 && b[0] == 0x45 && b[9] == encap.ProtoUDP {
			return p
		}
	}
}

// conformWriter checks a writer whose packets come out at the other end.
func conformWriter(t *testing.T, w writer, out fetch) {
	t.Helper()
	var c counters
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
		if err := encap.ParseIP(p.ip(), &ip); err != nil {
			t.Fatal(err)
		}
		if encap.IsPartial(p.ip(), &ip) {
			p.Offload, _ = encap.PartialOffload(p.ip(), &ip)
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
	c.publish()
	var s dataplane.Stats
	if c.addTo(&s.RxPackets, &s.RxBytes, &s); s != (dataplane.Stats{RxPackets: 5, RxBytes: sent}) {
		t.Errorf("counted %+v, want 5 packets of %d bytes", s, sent)
	}
}

// conformSender checks a sender whose datagrams come out at the other end.
func conformSender(t *testing.T, s sender, e *entry, headroom int, splits bool, out fetch) {
	t.Helper()
	var c counters
	for i, fragment := range []bool{false, true, false} {
		b := udpPacket(podA, podB, uint16(i), 2, fmt.Appendf(nil, "packet %d", i))
		p := packet{buf: append(make([]byte, headroom), b...), at: headroom}
		e.template.Put(p.datagram(), encap.EtherTypeIPv4)
		want := bytes.Clone(p.datagram())
		s.Send(&p, e, fragment, &c)
		s.Flush(&c)
		if got := out(); !bytes.Equal(got, want) {
			t.Errorf("datagram %d: got %x, want %x", i, got, want)
		}
	}
	packets := uint64(3)
	if splits {
		packets++
		super := superpacket(3000, 1000)
		super.buf, super.at = append(make([]byte, headroom-super.at), super.buf...), headroom
		s.Send(&super, e, false, &c)
		s.Flush(&c)
		for i := range 3 {
			if got := out(); len(got) != encap.HeaderLen+40+1000 || !sound(got[encap.HeaderLen:]) {
				t.Errorf("segment %d is %d bytes long", i, len(got))
			}
		}
	}
	s.Flush(&c) // nothing is left
	c.publish()
	var st dataplane.Stats
	if c.addTo(&st.TxPackets, &st.TxBytes, &st); st.TxPackets != packets || st.Drops != [dataplane.NumDrops]uint64{} {
		t.Errorf("counted %+v, want %d packets", st, packets)
	}
}

// conformReceiver checks a receiver that is fed by the other end.
func conformReceiver(t *testing.T, r receiver, in feed) {
	t.Helper()
	flushed := 0
	flush := func() { flushed++ }
	var d datagram
	for i, size := range []int{0, 100, 1400, 1} {
		want := append(make([]byte, encap.HeaderLen), udpPacket(podA, podB, uint16(i), 2, make([]byte, size))...)
		in(want)
		d = datagram{ecn: encap.ECNCE, exact: true, offload: encap.Offload{GSO: encap.GSOUDP, Size: 9}} // nothing of it may stay
		if err := r.Receive(&d, flush); err != nil {
			t.Fatal(err)
		}
		_, guesses := r.(guesser)
		if !bytes.Equal(d.buf, want) || !d.from.IsValid() || d.ecn != encap.ECNNot || d.offload != (encap.Offload{}) || d.exact == guesses {
			t.Errorf("datagram %d is %+v, want %x", i, d, want)
		}
		flushed = 0
	}
	r.stop()
	for range 2 {
		if err := r.Receive(&d, flush); err == nil {
			t.Error("Receive after stop succeeded")
		}
	}
	if flushed == 0 {
		t.Error("what was put off for the last datagram was not flushed")
	}
}

// TestMemoryConforms runs the suites over what is in memory.
func TestMemoryConforms(t *testing.T) {
	for _, offloads := range []Offloads{0, AllOffloads} {
		t.Run(offloads.String(), func(t *testing.T) {
			a, b := testPairOf(t, offloads)
			var got [][]byte
			next := func() (first []byte) {
				if len(got) > 0 {
					first, got = got[0], got[1:]
				}
				return first
			}
			note := func(b []byte) { got = append(got, bytes.Clone(b)) }
			a.OnPacket = note
			conformQueue(t, &a.end, encap.HeaderLen, func(b []byte) { a.Load(b); a.end.reset(1) }, next)
			a.OnPacket = nil
			a.OnOffload = func(p []byte, o encap.Offload) {
				if note(p); o.Partial {
					complete(got[len(got)-1][o.CsumStart:], int(o.CsumOffset))
				}
			}
			conformWriter(t, a.end.newWriter(), next)
			a.OnDatagram = func(d []byte, _ netip.Addr) { note(d) }
			conformSender(t, a.core.send[0].senders[0], &a.core.forwarding.Load().entries[0], 64, offloads.has(UDPSegment), next)
			conformReceiver(t, &b.end, func(d []byte) { b.LoadDatagrams(Datagram{Payload: d, From: a.VTEPs()[0].Addr}); b.end.reset(1) })
		})
	}
}
