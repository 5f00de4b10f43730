package encap

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
)

// FuzzSplitCoalesce splits a superpacket with any header that may be merged, and
// wants it back.
func FuzzSplitCoalesce(f *testing.F) {
	f.Add(false, false, uint16(3000), uint16(1000), []byte{0xb8, 64, 0xff, 0xff, 1, 9, 9, 9, 9, 1})
	f.Add(true, true, uint16(60000), uint16(1448), []byte{3})
	f.Add(true, false, uint16(65400), uint16(1398), []byte{0, 1, 2, 3, 0, 0xff, 0xff, 0xff, 0xff, 0})
	f.Add(false, true, uint16(500), uint16(1), []byte{})
	f.Fuzz(func(t *testing.T, v6, udp bool, n, size uint16, header []byte) {
		n, size = min(n, 65400), max(size, 1)
		whole := fuzzHeader(t, v6, udp, pattern(int(n)), header)
		parts := segments(t, whole, int(size))
		got := coalesce(t, NewCoalescer(true, true), parts...)
		most := MaxCoalesced
		if udp {
			most = maxCoalescedUDP
		}
		switch {
		case len(parts) == 1:
			compareWritten(t, got, []written{{packet: whole}})
		case len(parts) <= most:
			compareWritten(t, got, []written{super(t, whole, int(size))})
		}
		if again := resplit(t, got); len(parts) <= coalesceItems && !slices.EqualFunc(again, parts, bytes.Equal) {
			t.Fatalf("%d segments, and %d after coalescing and splitting, or not the same", len(parts), len(again))
		}
	})
}

// fuzzHeader returns a sound packet with header fields from header.
func fuzzHeader(t *testing.T, v6, udp bool, payload, header []byte) []byte {
	make, version := tcpPacket, 4
	if udp {
		make = udpPacket
	}
	if v6 {
		version = 6
	}
	packet := make(t, version, payload)
	var h [16]byte
	copy(h[:], header)
	l4 := 20
	if v6 {
		l4 = 40
		packet[1], packet[3], packet[7] = h[0], h[2], h[1]
	} else {
		packet[1], packet[8], packet[4], packet[5] = h[0], h[1], h[2], h[3]
		packet[6] = h[4] & 1 << 6 // DF
	}
	if !udp {
		copy(packet[l4+4:l4+12], h[5:13]) // sequence number, acknowledgement
		packet[l4+13] = tcpACK | h[13]&tcpPSH
		packet[l4+15], packet[l4+31] = h[14], h[15] // window, timestamp
	}
	fix(t, packet)
	return packet
}

// resplit returns the packets that a host would make of what was written to it.
func resplit(t *testing.T, items []written) (out [][]byte) {
	for i, w := range items {
		if w.GSO == GSONone {
			if w.Partial {
				CompleteChecksum(w.packet, parse(t, w.packet))
			}
			out = append(out, w.packet)
			continue
		}
		var s Splitter
		if err := s.InitOffload(w.packet, w.Offload); err != nil {
			t.Fatalf("item %d: %v", i, err)
		}
		if ip := parse(t, w.packet); !IsPartial(w.packet, ip) || ip.Version == 4 && slowSum(w.packet[:20], 0) != 0xffff {
			t.Fatalf("item %d: checksums are not those of a superpacket", i)
		}
		out = append(out, collect(t, &s)...)
	}
	return out
}

// FuzzCoalesce adds packets of several flows, some of them odd or damaged, and
// splits what comes out: each flow must have its packets, and in their order.
func FuzzCoalesce(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{1, 0, 0, 0, 1, 8, 33, 0, 0x81, 0, 33, 1, 2, 0, 0, 0, 2, 0x40, 0, 0, 2, 0, 5, 0x40})
	bases := fuzzBases(f)
	f.Fuzz(func(t *testing.T, ops []byte) {
		c := NewCoalescer(true, true)
		state := fuzzFlows{bases: bases}
		ops = ops[:min(len(ops), 4*3*coalesceItems)]
		var want, got fuzzLedger
		for ; len(ops) >= 4; ops = ops[4:] {
			p, ip := state.packet(t, ops), new(IP)
			if ParseIP(p, ip) != nil {
				continue
			}
			if !add(t, c, p) {
				got.enter(t, resplit(t, flush(t, c))...)
				add(t, c, p)
			}
			p = slices.Clone(p[:ip.Len])
			CompleteChecksum(p, ip)
			want.enter(t, p)
		}
		got.enter(t, resplit(t, flush(t, c))...)
		got.compare(t, want)
	})
}

// fuzzLedger has the packets of each flow, in order. Its own order is that of the
// first packets of the flows. A map would make runs of the fuzzer differ.
type fuzzLedger []struct {
	key     flowKey
	packets [][]byte
}

func (l *fuzzLedger) enter(t *testing.T, packets ...[]byte) {
	for _, p := range packets {
		var key flowKey
		key.parse(p, parse(t, p))
		i := 0
		for i < len(*l) && (*l)[i].key != key {
			i++
		}
		if i == len(*l) {
			*l = append(*l, struct {
				key     flowKey
				packets [][]byte
			}{key: key})
		}
		(*l)[i].packets = append((*l)[i].packets, comparable4(p))
	}
}

func (l fuzzLedger) compare(t *testing.T, want fuzzLedger) {
	if len(l) != len(want) {
		t.Fatalf("%d flows of %d", len(l), len(want))
	}
	for i, flow := range l {
		if flow.key != want[i].key || !slices.EqualFunc(flow.packets, want[i].packets, bytes.Equal) {
			t.Fatalf("flow %+v: got %x\nwant %+v: %x", flow.key, flow.packets, want[i].key, want[i].packets)
		}
	}
}

// comparable4 takes out of an IPv4 packet with DF what merging may lose: its ID.
func comparable4(p []byte) []byte {
	if p[0]>>4 == 4 && p[6]&0x40 != 0 {
		p = slices.Clone(p)
		copy(p[4:6], []byte{0, 0})
		copy(p[10:12], []byte{0, 0})
	}
	return p
}

// fuzzFlows makes the next packet of each of eight flows.
type fuzzFlows struct {
	bases [4][2][]byte
	sent  [8]uint32
	id    [8]uint16
}

// fuzzBases returns a packet of 8 and one of 9 bytes of payload for each protocol
// and IP version.
func fuzzBases(tb testing.TB) (bases [4][2][]byte) {
	for i := range 2 {
		bases[0][i] = tcpPacket(tb, 4, pattern(8+i))
		bases[1][i] = udpPacket(tb, 4, pattern(8+i))
		bases[2][i] = tcpPacket(tb, 6, pattern(8+i))
		bases[3][i] = udpPacket(tb, 6, pattern(8+i))
	}
	return bases
}

// packet reads flow, size, offset and bits to flip of an operation of four bytes.
func (s *fuzzFlows) packet(t *testing.T, op []byte) []byte {
	flow := op[0] & 7
	p := slices.Clone(s.bases[flow&3][op[1]&1])
	ip := parse(t, p)
	p[ip.HeaderLen+1] = flow & 4 // port
	if ip.Proto == ProtoTCP {
		binary.BigEndian.PutUint32(p[ip.HeaderLen+4:], s.sent[flow])
	}
	if ip.Version == 4 {
		binary.BigEndian.PutUint16(p[4:], s.id[flow])
	}
	s.id[flow]++
	s.sent[flow] += 8 + uint32(op[1]&1)
	flip := func() { p[int(op[2])%len(p)] ^= op[3] }
	if op[0]&0x80 == 0 { // before the checksums are made: odd
		flip()
	}
	if changed := new(IP); ParseIP(p, changed) == nil && !changed.Fragment &&
		(changed.Proto == ProtoTCP || changed.Proto == ProtoUDP) && changed.Len-changed.HeaderLen >= tcpMinLen {
		fix(t, p)
		if op[0]&0x40 != 0 && l4Len(p, changed) != 0 {
			putPartial(p, changed)
		}
	}
	if op[0]&0x80 != 0 { // or after them: damaged
		flip()
	}
	return p
}
