package encap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// collect returns all segments, each as one packet.
func collect(tb testing.TB, s *Splitter) [][]byte {
	tb.Helper()
	var segments [][]byte
	var hdr [MaxSplitHeader]byte
	for {
		n, payload, ok := s.Next(hdr[:])
		if !ok {
			return segments
		}
		segments = append(segments, append(append([]byte(nil), hdr[:n]...), payload...))
	}
}

// slowSplit has gopacket make the segments of a TCP packet of the given version,
// flags and payload.
func slowSplit(t *testing.T, version int, flags layers.TCP, payload []byte, mss int) [][]byte {
	t.Helper()
	var segments [][]byte
	for off := 0; off == 0 || off < len(payload); off += mss {
		end := min(off+mss, len(payload))
		l3 := network(version, layers.IPProtocolTCP)
		if l, ok := l3.(*layers.IPv4); ok {
			l.Id += uint16(off / mss)
		}
		l4 := tcpLayer(t, l3)
		l4.Seq += uint32(off)
		l4.FIN, l4.PSH = flags.FIN && end == len(payload), flags.PSH && end == len(payload)
		l4.CWR = flags.CWR && off == 0
		segments = append(segments, build(t, l3, l4, gopacket.Payload(payload[off:end])))
	}
	return segments
}

func TestSplitTCP(t *testing.T) {
	for _, version := range []int{4, 6} {
		headers := map[int]int{4: 20 + 32, 6: 40 + 32}[version]
		for _, tt := range []struct {
			name  string
			n     int // bytes of payload
			mss   int
			flags layers.TCP
		}{
			{"as large as it gets", 65535 - 20 - 32, 1398, layers.TCP{PSH: true}},
			{"whole segments", 3 * 1000, 1000, layers.TCP{PSH: true, FIN: true}},
			{"one byte left", 3*1000 + 1, 1000, layers.TCP{PSH: true, FIN: true}},
			{"odd size", 5000, 999, layers.TCP{CWR: true}},
			{"all flags", 3000, 1398, layers.TCP{CWR: true, PSH: true, FIN: true}},
			{"one byte each", 20, 1, layers.TCP{}},
			{"fits", 1000, 1000, layers.TCP{CWR: true, PSH: true, FIN: true}},
			{"no payload", 0, 1000, layers.TCP{FIN: true}},
		} {
			t.Run(fmt.Sprintf("IPv%d/%s", version, tt.name), func(t *testing.T) {
				payload := pattern(tt.n)
				l3 := network(version, layers.IPProtocolTCP)
				l4 := tcpLayer(t, l3)
				l4.FIN, l4.PSH, l4.CWR = tt.flags.FIN, tt.flags.PSH, tt.flags.CWR
				packet := build(t, l3, l4, gopacket.Payload(payload))
				makePartial(packet, parse(t, packet), headers-32+tcpChecksumOff)
				packet = append(packet, "padding"...)

				var s Splitter
				if err := s.InitTCP(packet, headers+tt.mss); err != nil {
					t.Fatalf("InitTCP: %v", err)
				}
				n := s.Segments()
				got, want := collect(t, &s), slowSplit(t, version, tt.flags, payload, tt.mss)
				if n != len(want) {
					t.Errorf("Segments = %d, want %d", n, len(want))
				}
				compareSegments(t, got, want)
			})
		}
	}
}

func compareSegments(t *testing.T, got, want [][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d segments, want %d", len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Fatalf("segment %d of %d:\n got % x\nwant % x", i, len(want), got[i][:min(80, len(got[i]))], want[i][:min(80, len(want[i]))])
		}
	}
}

func TestSplitUDP(t *testing.T) {
	for _, version := range []int{4, 6} {
		for _, n := range []int{1, 1000, 1001, 40_000} {
			t.Run(fmt.Sprintf("IPv%d/%d", version, n), func(t *testing.T) {
				payload := pattern(n)
				packet := udpPacket(t, version, payload)
				var s Splitter
				if err := s.InitUDP(packet, 1000); err != nil {
					t.Fatalf("InitUDP: %v", err)
				}
				var want [][]byte
				for off := 0; off < n; off += 1000 {
					l3 := network(version, layers.IPProtocolUDP)
					if l, ok := l3.(*layers.IPv4); ok {
						l.Id += uint16(off / 1000)
					}
					want = append(want, build(t, l3, udpLayer(t, l3), gopacket.Payload(payload[off:min(off+1000, n)])))
				}
				compareSegments(t, collect(t, &s), want)
			})
		}
	}
}

func TestSplitUDPWithoutChecksum(t *testing.T) {
	packet := udpPacket(t, 4, pattern(100))
	packet[26], packet[27] = 0, 0
	var s Splitter
	if err := s.InitUDP(packet, 60); err != nil {
		t.Fatalf("InitUDP: %v", err)
	}
	for i, segment := range collect(t, &s) {
		if segment[26]|segment[27] != 0 {
			t.Errorf("datagram %d has a checksum", i)
		}
	}
}

// TestSplitHeaders splits what has more headers than usual.
func TestSplitHeaders(t *testing.T) {
	v4 := tcpPacket(t, 4, pattern(1000))
	options := append(append(append([]byte(nil), v4[:20]...), make([]byte, 40)...), v4[20:]...)
	options[0] = 0x4f
	options[2], options[3] = byte(len(options)>>8), byte(len(options))

	v6 := tcpPacket(t, 6, pattern(1000))
	extension := append(append(append([]byte(nil), v6[:40]...), ProtoTCP, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), v6[40:]...)
	extension[6] = extDestination
	extension[4], extension[5] = byte((len(extension)-40)>>8), byte(len(extension)-40)

	for name, packet := range map[string][]byte{"IPv4 options": options, "IPv6 extension": extension} {
		var s Splitter
		if err := s.InitTCP(packet, 400); err != nil {
			t.Errorf("%s: InitTCP: %v", name, err)
		}
		checkSplit(t, packet, collect(t, &s), 400)
	}
}

// checkSplit checks what must hold of every split: each segment is a sound packet
// of at most maxLen bytes, and together they carry what the packet carries.
func checkSplit(tb testing.TB, packet []byte, segments [][]byte, maxLen int) {
	tb.Helper()
	whole := parse(tb, packet)
	headers := whole.HeaderLen + int(packet[whole.HeaderLen+12]>>4)*4
	seq := binary.BigEndian.Uint32(packet[whole.HeaderLen+4:])
	var payload []byte
	for i, segment := range segments {
		ip := parse(tb, segment)
		switch {
		case len(segment) > maxLen || ip.Len != len(segment):
			tb.Fatalf("segment %d has %d bytes and says %d, want at most %d", i, len(segment), ip.Len, maxLen)
		case ip.Src != whole.Src || ip.Dst != whole.Dst || ip.Proto != ProtoTCP || ip.HeaderLen != whole.HeaderLen:
			tb.Fatalf("segment %d is of another connection", i)
		case ip.Version == 4 && slowSum(segment[:ip.HeaderLen], 0) != 0xffff:
			tb.Fatalf("segment %d has a wrong header checksum", i)
		case !VerifyChecksum(segment, ip):
			tb.Fatalf("segment %d has a wrong TCP checksum", i)
		case binary.BigEndian.Uint32(segment[ip.HeaderLen+4:]) != seq+uint32(len(payload)):
			tb.Fatalf("segment %d has a wrong sequence number", i)
		}
		payload = append(payload, segment[headers:]...)
	}
	if !bytes.Equal(payload, packet[headers:whole.Len]) {
		tb.Fatalf("segments carry %d bytes, and not those of the packet (%d)", len(payload), whole.Len-headers)
	}
}

func TestSplitRefuses(t *testing.T) {
	tcp := tcpPacket(t, 4, pattern(100))
	with := func(b []byte, off int, v byte) []byte {
		b = append([]byte(nil), b...)
		b[off] = v
		return b
	}
	options := [64]byte{ProtoTCP, 7}
	long := tcpPacket(t, 6, pattern(100))
	long = append(append(append([]byte(nil), long[:40]...), options[:]...), long[40:]...)
	long[6] = extDestination
	long[5] += 64
	for _, tt := range []struct {
		name   string
		packet []byte
		maxLen int
		err    error
	}{
		{"not IP", []byte("this is no packet of IP"), 1000, ErrIP},
		{"short", tcp[:19], 1000, ErrShort},
		{"cut", tcp[:100], 1000, ErrIP},
		{"UDP", udpPacket(t, 4, pattern(100)), 1000, ErrNoSplit},
		{"first fragment", with(tcp, 6, 0x20), 1000, ErrNoSplit},
		{"later fragment", with(tcp, 7, 1), 1000, ErrNoSplit},
		{"TCP header cut", with(tcp, 3, 39), 1000, ErrNoSplit},
		{"data offset below 5", with(tcp, 32, 0x40), 1000, ErrNoSplit},
		{"data offset beyond the packet", with(with(tcp, 3, 52), 32, 0xf0), 1000, ErrNoSplit},
		{"headers of 136 bytes", long, 1000, ErrNoSplit},
		{"no room for payload", tcp, 52, ErrMaxLen},
		{"no room for headers", tcp, 0, ErrMaxLen},
		{"negative", tcp, -1, ErrMaxLen},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s Splitter
			if err := s.InitTCP(tt.packet, tt.maxLen); !errors.Is(err, tt.err) {
				t.Errorf("InitTCP error = %v, want %v", err, tt.err)
			}
			if _, _, ok := s.Next(make([]byte, MaxSplitHeader)); ok || s.Segments() != 0 {
				t.Error("there are segments nevertheless")
			}
		})
	}
	var s Splitter
	if err := s.InitUDP(tcp, 1000); !errors.Is(err, ErrNoSplit) {
		t.Errorf("InitUDP of TCP: error %v, want ErrNoSplit", err)
	}
	if err := s.InitUDP(udpPacket(t, 4, pattern(100)), 0); !errors.Is(err, ErrMaxLen) {
		t.Errorf("InitUDP with size 0: error %v, want ErrMaxLen", err)
	}
}

// TestSplitBounds: a packet makes no more segments than TCP and UDP of Linux would have it make.
func TestSplitBounds(t *testing.T) {
	for _, version := range []int{4, 6} {
		for _, tt := range []struct {
			gso     GSO // GSOTCPv4 also stands for GSOTCPv6
			n, size int
			want    int // segments; 0: refused
		}{
			{GSOTCPv4, 60_000, 1, 0}, {GSOTCPv4, 129, 1, 0}, {GSOTCPv4, 128, 1, 128}, {GSOTCPv4, 128*47 + 1, 47, 0}, {GSOTCPv4, 128 * 47, 47, 128},
			{GSOTCPv4, 60_000, 48, 1250},
			{GSOUDP, 60_000, 1, 0}, {GSOUDP, 129, 1, 0}, {GSOUDP, 128, 1, 128}, {GSOUDP, 128*400 + 1, 400, 0}, {GSOUDP, 128 * 400, 400, 128},
		} {
			o := Offload{GSO: tt.gso, Size: uint16(tt.size), CsumStart: map[int]uint16{4: 20, 6: 40}[version]}
			packet := tcpPacket(t, version, pattern(tt.n))
			switch {
			case tt.gso == GSOUDP:
				packet = udpPacket(t, version, pattern(tt.n))
			case version == 6:
				o.GSO = GSOTCPv6
			}
			var s Splitter
			err := s.InitOffload(packet, o)
			if n := len(collect(t, &s)); n != tt.want || (tt.want == 0) != errors.Is(err, ErrSegments) {
				t.Errorf("IPv%d: %+v of %d bytes: %d segments, error %v, want %d", version, o, tt.n, n, err, tt.want)
			}
		}
	}
}

// TestSplitKeepsPacket shows that payloads are borrowed and nothing is written.
func TestSplitKeepsPacket(t *testing.T) {
	packet := tcpPacket(t, 4, pattern(5000))
	before := string(packet)
	var s Splitter
	if err := s.InitTCP(packet, 1000); err != nil {
		t.Fatalf("InitTCP: %v", err)
	}
	hdr := make([]byte, MaxSplitHeader)
	for off := 52; ; {
		_, payload, ok := s.Next(hdr)
		if !ok {
			break
		}
		if &payload[0] != &packet[off] {
			t.Fatalf("payload at %d was copied", off)
		}
		off += len(payload)
	}
	if string(packet) != before {
		t.Error("the packet was changed")
	}
}
