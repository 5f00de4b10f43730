package encap

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// add is Add of a packet as it comes from the underlay, its checksum partial or not.
func add(tb testing.TB, c *Coalescer, packet []byte) bool {
	tb.Helper()
	ip := parse(tb, packet)
	var o Offload
	if IsPartial(packet, ip) {
		var ok bool
		if o, ok = PartialOffload(packet, ip); !ok {
			CompleteChecksum(packet, ip)
		}
	}
	return c.Add(packet, ip, o)
}

// written is an item as the device sees it.
type written struct {
	packet []byte
	Offload
}

// coalesce returns what becomes of copies of the packets, added in this order.
func coalesce(tb testing.TB, c *Coalescer, packets ...[]byte) []written {
	tb.Helper()
	for i, p := range packets {
		if !add(tb, c, slices.Clone(p)) {
			tb.Fatalf("no room for packet %d", i)
		}
	}
	return flush(tb, c)
}

func flush(tb testing.TB, c *Coalescer) (out []written) {
	tb.Helper()
	for i, item := range c.Flush() {
		w := written{bytes.Join(item.Parts, nil), item.Offload}
		if len(w.packet) != item.Len {
			tb.Fatalf("item %d has %d bytes and says %d", i, len(w.packet), item.Len)
		}
		out = append(out, w)
	}
	return out
}

// segments splits a packet with a complete checksum.
func segments(tb testing.TB, packet []byte, size int) [][]byte {
	tb.Helper()
	ip := parse(tb, packet)
	o, ok := SuperOffload(slices.Clone(packet), ip, uint16(size))
	var s Splitter
	var err error
	if ip.Proto == ProtoUDP { // not by InitOffload, which refuses what is too many segments for one packet
		err = s.InitUDP(packet, size)
	} else {
		err = s.InitTCP(packet, int(o.HdrLen)+size)
	}
	if !ok || err != nil {
		tb.Fatalf("split: %v, %v", ok, err)
	}
	return collect(tb, &s)
}

// super returns the packet as a superpacket: its checksum is partial.
func super(tb testing.TB, packet []byte, size int) written {
	tb.Helper()
	packet = slices.Clone(packet)
	o, ok := SuperOffload(packet, parse(tb, packet), uint16(size))
	if !ok {
		tb.Fatal("SuperOffload: not ok")
	}
	return written{packet, o}
}

func compareWritten(tb testing.TB, got, want []written) {
	tb.Helper()
	for i := range min(len(got), len(want)) {
		if got[i].Offload != want[i].Offload {
			tb.Errorf("item %d: offload %+v, want %+v", i, got[i].Offload, want[i].Offload)
		}
		if !bytes.Equal(got[i].packet, want[i].packet) {
			tb.Errorf("item %d:\n got % x\nwant % x", i, got[i].packet[:min(80, len(got[i].packet))], want[i].packet[:min(80, len(want[i].packet))])
		}
	}
	if len(got) != len(want) {
		tb.Fatalf("%d items, want %d", len(got), len(want))
	}
}

// TestCoalesceWhatWasSplit merges segments made by Splitter into what they were.
func TestCoalesceWhatWasSplit(t *testing.T) {
	for _, version := range []int{4, 6} {
		for name, packet := range map[string]func(tb testing.TB, version int, payload []byte) []byte{"TCP": tcpPacket, "UDP": udpPacket} {
			for _, n := range []int{1001, 3000, 3001, 60_000} {
				t.Run(fmt.Sprintf("%s/IPv%d/%d", name, version, n), func(t *testing.T) {
					whole := packet(t, version, pattern(n))
					got := coalesce(t, NewCoalescer(true, true), segments(t, whole, 1000)...)
					compareWritten(t, got, []written{super(t, whole, 1000)})
				})
			}
		}
	}
}

// TestCoalesceOffload spells out what the vnet header needs.
func TestCoalesceOffload(t *testing.T) {
	for _, tt := range []struct {
		name   string
		packet []byte
		want   Offload
	}{
		{"TCP4", tcpPacket(t, 4, pattern(2000)), Offload{GSOTCPv4, true, 1000, 20, 16, 52, 0}},
		{"TCP6", tcpPacket(t, 6, pattern(2000)), Offload{GSOTCPv6, true, 1000, 40, 16, 72, 0}},
		{"UDP4", udpPacket(t, 4, pattern(2000)), Offload{GSOUDP, true, 1000, 20, 6, 28, 0}},
		{"UDP6", udpPacket(t, 6, pattern(2000)), Offload{GSOUDP, true, 1000, 40, 6, 48, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := coalesce(t, NewCoalescer(true, true), segments(t, tt.packet, 1000)...)
			if len(got) != 1 || got[0].Offload != tt.want {
				t.Errorf("%d items, %+v; want one, %+v", len(got), got[0].Offload, tt.want)
			}
		})
	}
}

// stream returns n segments of 100 bytes of one connection, the last with PSH.
func stream(tb testing.TB, version, n int) [][]byte {
	tb.Helper()
	l3 := network(version, layers.IPProtocolTCP)
	l4 := tcpLayer(tb, l3)
	l4.PSH = true
	return segments(tb, build(tb, l3, l4, gopacket.Payload(pattern(100*n))), 100)
}

// fix makes all checksums of packet right.
func fix(tb testing.TB, packet []byte) {
	tb.Helper()
	ip := parse(tb, packet)
	if ip.Version == 4 {
		packet[10], packet[11] = 0, 0
		binary.BigEndian.PutUint16(packet[10:], ^slowSum(packet[:ip.HeaderLen], 0))
	}
	field := ip.HeaderLen + udpChecksumOff
	if ip.Proto == ProtoTCP {
		field = ip.HeaderLen + tcpChecksumOff
	}
	makePartial(packet, ip, field)
	CompleteChecksum(packet, ip)
}

// TestCoalesceNotAlike changes the second of three segments, checksums made
// right, so that it does not belong to the first: nothing may be merged, nothing
// changed, and the third must not overtake the second.
func TestCoalesceNotAlike(t *testing.T) {
	set := func(off int, mask byte) func([]byte) []byte {
		return func(b []byte) []byte { b[off] ^= mask; return b }
	}
	for _, tt := range []struct {
		name    string
		version int
		change  func(b []byte) []byte
	}{
		{"TOS", 4, set(1, 0x10)},
		{"congestion experienced", 4, set(1, 3)},
		{"ID", 4, set(5, 0x40)},
		{"DF", 4, set(6, 0x40)},
		{"evil bit", 4, set(6, 0x80)},
		{"first fragment", 4, set(6, 0x20)},
		{"later fragment", 4, set(7, 0x08)},
		{"TTL", 4, set(8, 1)},
		{"options", 4, func(b []byte) []byte {
			b = slices.Insert(b, 20, 1, 1, 1, 0)
			b[0], b[3] = 0x46, b[3]+4
			return b
		}},
		{"sequence number", 4, set(20+7, 1)},
		{"acknowledgement", 4, set(20+11, 1)},
		{"reserved bits", 4, set(20+12, 1)},
		{"FIN", 4, set(20+13, 0x01)},
		{"SYN", 4, set(20+13, 0x02)},
		{"RST", 4, set(20+13, 0x04)},
		{"URG", 4, set(20+13, 0x20)},
		{"ECE", 4, set(20+13, 0x40)},
		{"CWR", 4, set(20+13, 0x80)},
		{"no ACK", 4, set(20+13, 0x10)},
		{"window", 4, set(20+15, 1)},
		{"urgent pointer", 4, set(20+19, 1)},
		{"timestamp", 4, set(20+31, 1)},
		{"no payload", 4, func(b []byte) []byte { b = b[:52]; b[3] = 52; return b }},
		{"traffic class", 6, set(1, 0x40)},
		{"flow label", 6, set(3, 1)},
		{"hop limit", 6, set(7, 1)},
		{"extension header", 6, func(b []byte) []byte {
			b = slices.Insert(b, 40, ProtoTCP, 0, 1, 4, 0, 0, 0, 0)
			b[5], b[6] = b[5]+8, extDestination
			return b
		}},
		{"fragment header", 6, func(b []byte) []byte {
			b = slices.Insert(b, 40, ProtoTCP, 0, 0, 1, 0, 0, 0, 9)
			b[5], b[6] = b[5]+8, extFragment
			return b
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := stream(t, tt.version, 3)
			in[1] = tt.change(in[1])
			if !parse(t, in[1]).Fragment {
				fix(t, in[1])
			}
			want := []written{{packet: in[0]}, {packet: in[1]}, {packet: in[2]}}
			compareWritten(t, coalesce(t, NewCoalescer(true, true), in...), want)
		})
	}
}

// TestCoalesceDamage damages one byte of one of three segments: it goes out alone
// as it came, whatever the byte is.
func TestCoalesceDamage(t *testing.T) {
	for _, version := range []int{4, 6} {
		for kind, in := range map[string][][]byte{
			"TCP": stream(t, version, 3),
			"UDP": segments(t, udpPacket(t, version, pattern(300)), 100),
		} {
			for i := range in {
				for off := range in[i] {
					if version == 6 && (off < 4 || off == 7) {
						continue // no checksum covers it
					}
					all := slices.Clone(in)
					all[i] = slices.Clone(in[i])
					all[i][off] ^= 0x04
					var ip IP
					if ParseIP(all[i], &ip) != nil {
						continue // is dropped before it is added
					}
					damaged := all[i][:ip.Len]
					if !slices.ContainsFunc(coalesce(t, NewCoalescer(true, true), all...), func(w written) bool {
						return w.GSO == GSONone && bytes.Equal(w.packet, damaged)
					}) {
						t.Fatalf("%s over IPv%d: segment %d, byte %d was damaged, and is lost or merged", kind, version, i, off)
					}
				}
			}
		}
	}
}

// TestCoalesceOrder has two connections, whose segments are merged across each
// other's, and what ends a superpacket.
func TestCoalesceOrder(t *testing.T) {
	a, b := stream(t, 4, 4), stream(t, 4, 4)
	for _, p := range b {
		p[20+1]++ // source port
		fix(t, p)
	}
	fin := slices.Clone(a[2])
	fin[20+13] |= tcpFIN
	fix(t, fin)
	got := coalesce(t, NewCoalescer(true, true), a[0], b[0], a[1], b[1], fin, b[2], a[3], b[3])
	var order []string
	for _, w := range got {
		order = append(order, fmt.Sprintf("port %d, %d bytes", binary.BigEndian.Uint16(w.packet[20:]), len(w.packet)-52))
	}
	want := []string{"port 4000, 200 bytes", "port 4001, 400 bytes", "port 4000, 100 bytes", "port 4000, 100 bytes"}
	if !slices.Equal(order, want) {
		t.Errorf("order %q, want %q", order, want)
	}
	if got[1].packet[20+13] != tcpACK|tcpPSH {
		t.Errorf("flags of the superpacket %#x, want PSH of its last segment", got[1].packet[20+13])
	}
}

// TestCoalesceEnds has what may be the last segment of a superpacket only.
func TestCoalesceEnds(t *testing.T) {
	in := stream(t, 4, 6)
	short := slices.Clone(in[1][:52+99])
	short[3]--
	fix(t, short)
	afterShort := slices.Clone(in[2])
	binary.BigEndian.PutUint32(afterShort[24:], binary.BigEndian.Uint32(afterShort[24:])-1)
	fix(t, afterShort)
	push := slices.Clone(in[1])
	push[20+13] |= tcpPSH
	fix(t, push)
	small := segments(t, tcpPacket(t, 4, pattern(600)), 100)
	for _, tt := range []struct {
		name string
		in   [][]byte
		want []int // lengths of payloads
	}{
		{"short", [][]byte{in[0], short, afterShort}, []int{199, 100}},
		{"push", [][]byte{in[0], push, in[2], in[3]}, []int{200, 200}},
		{"push first", [][]byte{push, in[2], in[3]}, []int{100, 200}},
		{"gap", [][]byte{in[0], in[1], in[3], in[4]}, []int{200, 200}},
		{"repeated", [][]byte{in[0], in[1], in[1], in[2]}, []int{200, 200}},
		{"backwards", [][]byte{in[1], in[0]}, []int{100, 100}},
		{"larger", [][]byte{small[0], segments(t, tcpPacket(t, 4, pattern(600)), 101)[1]}, []int{100, 101}},
		{"alone", [][]byte{in[0]}, []int{100}},
		{"none", nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []int
			for _, w := range coalesce(t, NewCoalescer(true, true), tt.in...) {
				got = append(got, len(w.packet)-52)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("payloads of %v bytes, want %v", got, tt.want)
			}
		})
	}
}

// TestCoalesceIDs has the IPv4 ID, which means something only if DF is clear.
func TestCoalesceIDs(t *testing.T) {
	for _, tt := range []struct {
		name   string
		df     byte
		ids    []uint16
		merged bool
	}{
		{"consecutive", 0, []uint16{0xffff, 0, 1}, true},
		{"the same", 0, []uint16{5, 5, 5}, false},
		{"DF, the same", 0x40, []uint16{0, 0, 0}, true},
		{"DF, any", 0x40, []uint16{7, 3, 900}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := stream(t, 4, 3)
			for i, p := range in {
				p[6] = tt.df
				binary.BigEndian.PutUint16(p[4:], tt.ids[i])
				fix(t, p)
			}
			if got := coalesce(t, NewCoalescer(true, true), in...); (len(got) == 1) != tt.merged {
				t.Errorf("%d items, want merged %v", len(got), tt.merged)
			}
		})
	}
}

// TestCoalesceSwitches has devices that take superpackets of one protocol.
func TestCoalesceSwitches(t *testing.T) {
	in := append(stream(t, 4, 3), segments(t, udpPacket(t, 4, pattern(300)), 100)...)
	for _, tt := range []struct {
		tcp, udp bool
		want     int
	}{{true, true, 2}, {true, false, 4}, {false, true, 4}, {false, false, 6}} {
		if got := coalesce(t, NewCoalescer(tt.tcp, tt.udp), in...); len(got) != tt.want {
			t.Errorf("TCP %v, UDP %v: %d items, want %d", tt.tcp, tt.udp, len(got), tt.want)
		}
	}
}

// TestCoalescePartial has partial checksums, as from a host on the same machine.
func TestCoalescePartial(t *testing.T) {
	whole := tcpPacket(t, 4, pattern(300))
	in := segments(t, whole, 100)
	for _, p := range in[1:] {
		makePartial(p, parse(t, p), 20+tcpChecksumOff)
	}
	compareWritten(t, coalesce(t, NewCoalescer(true, true), in...), []written{super(t, whole, 100)})

	one := segments(t, tcpPacket(t, 4, pattern(300)), 400)[0]
	makePartial(one, parse(t, one), 20+tcpChecksumOff)
	want := written{one, Offload{Partial: true, CsumStart: 20, CsumOffset: 16, HdrLen: 52}}
	compareWritten(t, coalesce(t, NewCoalescer(true, true), one), []written{want})
}

// TestCoalesceSuperpacket passes one through between segments of its flow.
func TestCoalesceSuperpacket(t *testing.T) {
	in := stream(t, 4, 5)
	c := NewCoalescer(true, true)
	middle := super(t, tcpPacket(t, 4, pattern(300)), 100)
	for i, p := range in {
		if i == 2 && !c.Add(middle.packet, parse(t, middle.packet), middle.Offload) {
			t.Fatal("no room")
		}
		add(t, c, p)
	}
	got := flush(t, c)
	if len(got) != 3 {
		t.Fatalf("%d items, want 3", len(got))
	}
	compareWritten(t, got[1:2], []written{middle})
}

// TestCoalesceOther has packets of no flow, which end none.
func TestCoalesceOther(t *testing.T) {
	in := stream(t, 4, 2)
	ping := slices.Clone(in[0])
	ping[9] = protoICMP
	stub := slices.Clone(in[0][:22])
	stub[3] = 22 // no room for ports
	padded := append(slices.Clone(in[1]), "padding"...)
	c := NewCoalescer(true, true)
	got := coalesce(t, c, in[0], ping, padded)
	if len(got) != 2 || len(got[0].packet) != 52+200 || !bytes.Equal(got[1].packet, ping) {
		t.Errorf("%d items, the first of %d bytes", len(got), len(got[0].packet))
	}
	if got := coalesce(t, c, in[0], stub, in[1]); len(got) != 3 {
		t.Errorf("a TCP header cut short: %d items, want 3", len(got))
	}
	if got := coalesce(t, c); len(got) != 0 {
		t.Errorf("%d items of nothing", len(got))
	}
}
