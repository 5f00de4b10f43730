package bench

import (
	"encoding/binary"
	"testing"

	"github.com/overlayd/overlayd/encap"
)

const (
	superHeaders = 20 + 32 // IPv4, and TCP with timestamps
	superMSS     = 1450 - superHeaders
	superLen     = superHeaders + 46*superMSS // the longest that TUN reads at MTU 1450
)

// superpacket returns a TCP superpacket of superLen bytes from the given port, as
// TUN reads it.
func superpacket(tb testing.TB, port uint16) ([]byte, encap.Offload) {
	tb.Helper()
	b := udpPacket(overlay(0, 5), overlay(1, 7), superLen)
	b[9] = encap.ProtoTCP
	l4 := b[20:]
	clear(l4[:32])
	binary.BigEndian.PutUint16(l4[0:], port)
	binary.BigEndian.PutUint16(l4[2:], 80)
	l4[12], l4[13] = 8<<4, 0x18 // ACK and PSH
	copy(l4[20:], []byte{1, 1, 8, 10})
	for i := range l4[32:] {
		l4[32+i] = byte(i*7 + i>>8)
	}
	binary.BigEndian.PutUint16(b[10:], ^encap.SumPortable(b[:20], 0))
	var ip encap.IP
	if err := encap.ParseIP(b, &ip); err != nil {
		tb.Fatal(err)
	}
	o, ok := encap.SuperOffload(b, &ip, superMSS)
	if !ok {
		tb.Fatal("no superpacket")
	}
	return b, o
}

// reportSuper reports the cost of one superpacket per operation.
func reportSuper(b *testing.B, segments int) {
	ns := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
	b.ReportMetric(ns/float64(segments), "ns/segment")
	b.ReportMetric(float64(segments*superMSS)*8/ns, "Gbit/s")
	b.ReportAllocs()
}

// BenchmarkSplit makes 46 datagrams of a superpacket of 64 KB: all headers,
// VXLAN included, and all checksums.
func BenchmarkSplit(b *testing.B) {
	packet, o := superpacket(b, 4000)
	mac := encap.MAC{0x0e, 0x2a, 0, 0, 0, 1}
	tmpl := encap.NewTemplate(1, mac, mac)
	limit := encap.RunLimit{Datagrams: encap.MaxRunDatagrams, Bytes: encap.MaxRunBytes}
	headers := make([]byte, 46*(encap.HeaderLen+superHeaders))
	var s encap.Splitter
	b.ResetTimer()
	for range b.N {
		if err := s.InitOffload(packet, o); err != nil {
			b.Fatal(err)
		}
		free := headers
		for run := s.RunLen(limit); run > 0; run = s.RunLen(limit) {
			for range run {
				tmpl.Put(free, encap.EtherTypeIPv4)
				n, payload, ok := s.Next(free[encap.HeaderLen:])
				if !ok || len(payload) != superMSS {
					b.Fatal("wrong segment")
				}
				free = free[encap.HeaderLen+n:]
			}
		}
	}
	reportSuper(b, 46)
}

// BenchmarkCoalesce makes superpackets of 46 segments each again: checks, checksums
// of all segments, and headers. The segments of 8 connections come by turns.
func BenchmarkCoalesce(b *testing.B) {
	b.Run("1 connection", func(b *testing.B) { benchCoalesce(b, 1, false) })
	b.Run("8 connections", func(b *testing.B) { benchCoalesce(b, 8, false) })
	b.Run("partial", func(b *testing.B) { benchCoalesce(b, 1, true) })
}

func benchCoalesce(b *testing.B, flows int, partial bool) {
	in := make([][]byte, 0, 46*flows)
	firsts := make([][]byte, flows) // the headers that coalescing changes
	for i := range flows {
		for j, segment := range segments(b, uint16(4000+i)) {
			if j == 0 {
				firsts[i] = append([]byte(nil), segment[:superHeaders]...)
			}
			in = append(in, segment)
		}
	}
	c := encap.NewCoalescer(true, true)
	b.ResetTimer()
	for range b.N {
		for i, first := range firsts {
			copy(in[46*i], first)
		}
		for j := range 46 {
			for i := range flows {
				addSegment(b, c, in[46*i+j], partial)
			}
		}
		if items := c.Flush(); len(items) != flows || items[0].Len != superLen {
			b.Fatalf("%d items", len(items))
		}
	}
	reportSuper(b, 46*flows)
}

// addSegment is what the receiving worker does with a packet.
func addSegment(b *testing.B, c *encap.Coalescer, segment []byte, partial bool) {
	var ip encap.IP
	if err := encap.ParseIP(segment, &ip); err != nil {
		b.Fatal(err)
	}
	var o encap.Offload
	if partial || encap.IsPartial(segment, &ip) {
		o, _ = encap.PartialOffload(segment, &ip)
	}
	if !c.Add(segment, &ip, o) {
		b.Fatal("no room")
	}
}

// segments returns a superpacket's segments, each in a buffer of its own.
func segments(tb testing.TB, port uint16) (out [][]byte) {
	tb.Helper()
	packet, o := superpacket(tb, port)
	var s encap.Splitter
	if err := s.InitOffload(packet, o); err != nil {
		tb.Fatal(err)
	}
	hdr := make([]byte, encap.MaxSplitHeader)
	for range s.Segments() {
		n, payload, _ := s.Next(hdr)
		out = append(out, append(append([]byte(nil), hdr[:n]...), payload...))
	}
	return out
}
