package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/overlayd/overlayd/cmd/internal/stream"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/capture"
	"github.com/overlayd/overlayd/encap"
)

var update = flag.Bool("update", false, "write the golden files")

var peerB = netip.MustParseAddr("192.0.2.2")

// serialize makes the bytes of a packet.
func serialize(t testing.TB, all ...gopacket.SerializableLayer) []byte {
	t.Helper()
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true}, all...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func ip4(proto layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, TTL: 64, Protocol: proto, SrcIP: []byte{10, 42, 1, 5}, DstIP: []byte{10, 42, 2, 7}}
}

func ip6(proto layers.IPProtocol) *layers.IPv6 {
	return &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: netip.MustParseAddr("fd10::5").AsSlice(), DstIP: netip.MustParseAddr("fd10::7").AsSlice()}
}

// vxlan is a datagram of these layers.
func vxlan(t testing.TB, vni uint32, etherType layers.EthernetType, all ...gopacket.SerializableLayer) []byte {
	return serialize(t, append([]gopacket.SerializableLayer{&layers.VXLAN{ValidIDFlag: true, VNI: vni},
		&layers.Ethernet{SrcMAC: []byte{2, 0, 0, 0, 0, 1}, DstMAC: []byte{2, 0, 0, 0, 0, 2}, EthernetType: etherType}}, all...)...)
}

// shown is a packet, as a worker shows it.
type shown struct {
	capture.Meta
	b []byte
}

// samples are packets of each kind.
func samples(t testing.TB) []shown {
	drop := func(why dataplane.Drop, f capture.Form, peer netip.Addr) capture.Meta {
		return capture.Meta{Verdict: capture.Dropped(why), Form: f, Peer: peer}
	}
	sent := capture.Meta{Verdict: capture.Sent, Form: capture.Datagram, Peer: peerB}
	super := sent
	super.GSO, super.Size, super.Partial = encap.GSOTCPv4, 1398, true
	tcp := &layers.TCP{SrcPort: 80, DstPort: 1234, Seq: 7, Ack: 9, ACK: true, PSH: true, Window: 502}
	fragment := ip4(layers.IPProtocolUDP)
	fragment.Flags, fragment.FragOffset = layers.IPv4MoreFragments, 185
	hop := ip6(layers.IPProtocolIPv6HopByHop)
	v4, v6 := layers.EthernetTypeIPv4, layers.EthernetTypeIPv6
	return []shown{
		{sent, vxlan(t, 1, v4, ip4(layers.IPProtocolTCP), tcp, gopacket.Payload("hello"))},
		{super, vxlan(t, 1, v4, ip4(layers.IPProtocolTCP), tcp, gopacket.Payload(make([]byte, 60_000)))},
		{capture.Meta{Verdict: capture.Received, Form: capture.Datagram, Peer: netip.MustParseAddr("2001:db8::9")},
			vxlan(t, 1, v6, ip6(layers.IPProtocolUDP), &layers.UDP{SrcPort: 53, DstPort: 4789}, gopacket.Payload("answer"))},
		{sent, vxlan(t, 1, v4, ip4(layers.IPProtocolICMPv4), &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 3, Seq: 4}, gopacket.Payload(make([]byte, 56)))},
		{sent, vxlan(t, 1, v6, ip6(layers.IPProtocolICMPv6), &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(129, 0)}, gopacket.Payload{0, 5, 0, 6, 1})},
		{sent, vxlan(t, 1, v4, fragment, gopacket.Payload(make([]byte, 80)))},
		{sent, vxlan(t, 1, v4, ip4(layers.IPProtocolGRE), gopacket.Payload(make([]byte, 8)))},
		{sent, vxlan(t, 1, v4, ip4(layers.IPProtocolIPv4), ip4(layers.IPProtocolUDP), gopacket.Payload("in a tunnel"))},
		{sent, vxlan(t, 1, v6, hop, gopacket.Payload{59, 0, 1, 4, 0, 0, 0, 0, 'x'})}, // padding, and no next header
		{drop(dataplane.DropNoRoute, capture.IP, netip.Addr{}), serialize(t, ip4(layers.IPProtocolUDP), &layers.UDP{SrcPort: 1, DstPort: 2}, gopacket.Payload("lost"))},
		{drop(dataplane.DropTooBig, capture.IP, peerB), serialize(t, ip6(layers.IPProtocolTCP), &layers.TCP{SrcPort: 1, DstPort: 2, SYN: true}, gopacket.Payload(""))},
		{drop(dataplane.DropBadHeader, capture.IP, netip.Addr{}), make([]byte, 100)},
		{drop(dataplane.DropBadHeader, capture.IP, netip.Addr{}), nil},
		{drop(dataplane.DropBadHeader, capture.Arrival, peerB), []byte{8, 0, 0}},
		{drop(dataplane.DropBadHeader, capture.Arrival, peerB), vxlan(t, 1, v4)[:30]},
		{drop(dataplane.DropBadVNI, capture.Arrival, peerB), vxlan(t, 77, v4, ip4(layers.IPProtocolTCP), tcp)},
		{drop(dataplane.DropBadSource, capture.Arrival, peerB), vxlan(t, 1, layers.EthernetTypeARP, gopacket.Payload(make([]byte, 28)))},
		{drop(dataplane.DropBadHeader, capture.Arrival, peerB), vxlan(t, 1, v4, ip4(layers.IPProtocolTCP), tcp)[:8+14+20+10]},
	}
}

// streamOf is a whole stream of packets, that has lost some.
func streamOf(t testing.TB, packets []shown, snap int, lost uint64) []byte {
	t.Helper()
	var h capture.Hub
	c, err := h.Start(capture.Filter{Snap: snap})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	b := stream.Hello{V: stream.Version, Host: "host-a", Version: "0.3", Filter: "?peer=host-b", Verdicts: capture.Verdicts()}.Append(nil)
	b = stream.Names{}.Update(b, stream.Names{peerB: "host-b"})
	for _, p := range packets {
		var known, other capture.Point
		h.Join(1, &known)
		h.Join(0, &other)
		at := &known
		if p.Verdict == capture.Dropped(dataplane.DropBadVNI) {
			at = &other
		}
		at.Tap().Show(p.Meta, p.b)
		b = c.Append(b, len(b)+1)
	}
	return capture.AppendText(capture.AppendLost(b, lost), capture.End, "")
}

// decoded decodes a stream, and returns the output and the notes.
func decoded(t testing.TB, b []byte, text bool) (out, notes string, err error) {
	t.Helper()
	var files [2]*os.File
	for i := range files {
		f, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	err = run(bytes.NewReader(b), files[0], files[1], text)
	for i, s := range []*string{&out, &notes} {
		b, rerr := os.ReadFile(files[i].Name())
		if rerr != nil {
			t.Fatal(rerr)
		}
		*s = string(b)
	}
	return out, notes, err
}

// TestTrace: each kind of packet has its line.
func TestTrace(t *testing.T) {
	out, notes, err := decoded(t, streamOf(t, samples(t), 192, 3), true)
	if want := "18 packets captured, 3 lost because they came faster than they were read\n"; err != nil || notes != want {
		t.Errorf("notes %q, %v", notes, err)
	}
	if _, notes, err := decoded(t, streamOf(t, samples(t)[:1], 192, 0), true); err != nil || !strings.HasPrefix(notes, "1 packet captured, 0 lost") {
		t.Errorf("of one packet %q, %v", notes, err)
	}
	var lines strings.Builder
	for line := range strings.Lines(out) {
		stamp, rest, _ := strings.Cut(line, " ")
		if _, err := time.Parse("15:04:05.000000", stamp); err != nil {
			t.Error(err)
		}
		lines.WriteString(rest)
	}
	const golden = "testdata/trace.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(lines.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || lines.String() != string(want) {
		t.Errorf("%v; got\n%s", err, lines.String())
	}
}

// TestFile: each packet is on the interface of its verdict, with its bytes and length, and the file says what was lost.
func TestFile(t *testing.T) {
	packets := samples(t)
	out, _, err := decoded(t, streamOf(t, packets, 100, 3), false)
	if err != nil {
		t.Fatal(err)
	}
	stats := map[int]pcapgo.NgInterfaceStatistics{}
	r, err := pcapgo.NewNgReader(strings.NewReader(out), pcapgo.NgReaderOptions{ErrorOnMismatchingLinkType: true,
		StatisticsCallback: func(i int, s pcapgo.NgInterfaceStatistics) { stats[i] = s }})
	if err != nil {
		t.Fatal(err)
	}
	verdicts := capture.Verdicts()
	count := make([]uint64, len(verdicts))
	for i, p := range packets {
		data, ci, err := r.ReadPacketData()
		if err != nil {
			t.Fatalf("packet %d: %v", i, err)
		}
		intf, err := r.Interface(ci.InterfaceIndex)
		if err != nil || intf.Name != p.Verdict.String() || time.Since(ci.Timestamp) > time.Minute {
			t.Errorf("packet %d is on %q at %s, want %s", i, intf.Name, ci.Timestamp, p.Verdict)
		}
		count[ci.InterfaceIndex]++
		want := p.b
		if p.Form != capture.IP && len(p.b) > 8 {
			want = p.b[8:]
		} else {
			want = append(make([]byte, 14), want...)
			copy(want[12:], data[12:14])
		}
		if ci.Length != len(want) || !bytes.HasPrefix(want, data) || len(data) < min(len(want), 100) {
			t.Errorf("packet %d: %d bytes of %d, want %d", i, len(data), ci.Length, len(want))
		}
	}
	if _, _, err := r.ReadPacketData(); !errors.Is(err, io.EOF) {
		t.Errorf("then: %v", err)
	}
	count[0] += 3
	for i, n := range count {
		if stats[i].PacketsReceived != n || i == 0 && stats[i].PacketsDropped != 3 {
			t.Errorf("%s: %+v, want %d", verdicts[i], stats[i], n)
		}
	}
	if info := r.SectionInfo(); info.Comment != "overlayd capture?peer=host-b on host-a" || info.Application != "overlayd 0.3" {
		t.Errorf("section %+v", info)
	}
}

// TestErrors: what is wrong with input or output is one sentence, and what came before is written.
func TestErrors(t *testing.T) {
	b := streamOf(t, samples(t), 0, 0)
	if out, _, err := decoded(t, b[:len(b)-20], true); !errors.Is(err, stream.ErrCut) || strings.Count(out, "\n") != 18 {
		t.Errorf("a stream that is cut: %v, %d lines", err, strings.Count(out, "\n"))
	}
	if _, _, err := decoded(t, []byte("HTTP/1.1 200 OK\r\n"), false); !errors.Is(err, capture.ErrStream) {
		t.Errorf("no stream: %v", err)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, text := range []bool{false, true} {
		if err := run(bytes.NewReader(b), full, os.Stderr, text); err == nil || err.Error() != "write /dev/full: no space left on device" {
			t.Errorf("a full disk: %v", err)
		}
	}
}

// TestHostilePacket: an sFlow packet that claims 16 Gi samples takes no memory for them, as it would if gopacket read all
// that it can.
func TestHostilePacket(t *testing.T) {
	flow := make([]byte, 100)
	copy(flow, []byte{0, 0, 0, 5, 0, 0, 0, 1, 10, 0, 0, 1})
	for i := 24; i < len(flow); i++ {
		flow[i] = 0xff
	}
	b := vxlan(t, 1, layers.EthernetTypeIPv4, ip4(layers.IPProtocolUDP), &layers.UDP{SrcPort: 6343, DstPort: 6343}, gopacket.Payload(flow))
	p := stream.Packet{Packet: &capture.Packet{Meta: capture.Meta{Form: capture.Arrival}, VNI: 1, Length: len(b), Data: b}, Verdict: "rx"}
	tr := newTrace(io.Discard)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := tr.Packet(&p); err != nil || !strings.Contains(string(tr.line), "udp len 100") {
		t.Errorf("%s, %v", tr.line, err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("%d bytes were allocated", n)
	}
}

// FuzzTrace: whatever a packet is, it has one line, without control characters, and takes little memory.
func FuzzTrace(f *testing.F) {
	for _, p := range samples(f) {
		f.Add(byte(p.Form), p.b)
	}
	tr := newTrace(io.Discard)
	f.Fuzz(func(t *testing.T, form byte, b []byte) {
		p := stream.Packet{Packet: &capture.Packet{Meta: capture.Meta{Form: capture.Form(form % 3)}, Length: len(b), Data: b}, Verdict: "tx"}
		if err := tr.Packet(&p); err != nil {
			t.Fatal(err)
		}
		if line := strings.TrimSuffix(string(tr.line), "\n"); line != control.Printable(line, 4096) {
			t.Fatalf("line %q", line)
		}
	})
}
