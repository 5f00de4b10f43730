package userspace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/packettest"
	"github.com/overlayd/overlayd/encap"
)

const testMTU = 1450

// What dataplane/carrier does: the outer source ports of flows, and the largest packet that a
// superpacket of unknown segments is split into.
const (
	sourcePorts = 16
	guessedMTU  = 1280
)

// testPair is two dataplanes in memory that know each other: a has 10.42.1.0/24
// and fd42:0:0:1::/64, b has the same with 2.
func testPair(tb testing.TB) (a, b *Memory) {
	tb.Helper()
	return testPairOf(tb, 0)
}

// testPairOf is testPair with offloads.
func testPairOf(tb testing.TB, offloads Offloads) (a, b *Memory) {
	tb.Helper()
	var nodes [2]*Memory
	var peers [2]dataplane.Peer
	for i := range nodes {
		addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})
		nodes[i] = NewMemory(Config{Underlays: []dataplane.Underlay{{Local: addr, Public: addr}}, VNI: testVNI, Port: testPort, MTU: testMTU, Offloads: offloads})
		peers[i] = dataplane.Peer{VTEP: nodes[i].VTEPs()[0], Subnets: []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 42, byte(i + 1), 0}), 24),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x42, 7: byte(i + 1)}), 64),
		}}
	}
	for i, n := range nodes {
		if err := n.Sync(dataplane.Wanted{MTU: testMTU, Subnets: peers[i].Subnets, Peers: []dataplane.Peer{peers[1-i]}}); err != nil {
			tb.Fatal(err)
		}
	}
	return nodes[0], nodes[1]
}

// encapsulate returns what m sends for a packet.
func encapsulate(tb testing.TB, m *Memory, packet []byte) (d carrier.Arrival) {
	tb.Helper()
	m.OnDatagram = func(b []byte, _ netip.Addr) {
		d = carrier.Arrival{Payload: bytes.Clone(b), From: m.core.vteps[0].Addr}
	}
	m.Load(packet)
	m.Send(1)
	if d.Payload == nil {
		tb.Fatalf("not sent: %+v", m.Stats())
	}
	return d
}

// encapsulateAll returns the datagrams that m sends for packets.
func encapsulateAll(m *Memory, packets [][]byte) (ds []carrier.Arrival) {
	m.Load(packets...)
	return sendLoaded(m, len(packets))
}

// encapsulateOffload is the same for one packet that leaves something to do.
func encapsulateOffload(m *Memory, o encap.Offload, packet []byte) []carrier.Arrival {
	m.LoadOffload(o, packet)
	return sendLoaded(m, 1)
}

func sendLoaded(m *Memory, n int) (ds []carrier.Arrival) {
	m.OnDatagram = func(b []byte, _ netip.Addr) {
		ds = append(ds, carrier.Arrival{Payload: bytes.Clone(b), From: m.core.vteps[0].Addr})
	}
	m.Send(n)
	return ds
}

// decapsulate returns what m delivers for a datagram.
func decapsulate(m *Memory, d carrier.Arrival) (packets [][]byte) {
	m.OnPacket = func(b []byte) { packets = append(packets, bytes.Clone(b)) }
	m.LoadDatagrams(d)
	m.Receive(1)
	return packets
}

func TestPacketsCrossUnchanged(t *testing.T) {
	a, b := testPair(t)
	fragment := udpPacket(podA, podB, 1, 2, make([]byte, 1400))
	binary.BigEndian.PutUint16(fragment[6:], 0x2000)
	wrong := udpPacket(podA, podB, 1, 2, []byte("wrong"))
	wrong[27]++
	tests := map[string][]byte{
		"UDP":            udpPacket(podA, podB, 1, 2, []byte("hello")),
		"TCP":            tcpPacket(podA, podB, 7, make([]byte, testMTU-40)),
		"UDP v6":         udpPacket(podA6, podB6, 1, 2, []byte("hello")),
		"TCP v6":         tcpPacket(podA6, podB6, 7, make([]byte, testMTU-60)),
		"fragment":       fragment,
		"wrong checksum": wrong, // not ours to repair, nor to judge
		"UDP over MTU":   udpPacket(podA, podB, 1, 2, make([]byte, 9000)),
		"other protocol": packettest.IP(podA, podB, 50, []byte("ESP")),
	}
	var bytesSent uint64
	for name, packet := range tests {
		bytesSent += uint64(len(packet))
		d := encapsulate(t, a, packet)
		d.Payload = append(d.Payload, "padding"...)
		if got := decapsulate(b, d); len(got) != 1 || !bytes.Equal(got[0], packet) {
			t.Errorf("%s: sent %x, got %x", name, packet, got)
		}
	}
	n := uint64(len(tests))
	if s := a.Stats(); s != (dataplane.Stats{TxPackets: n, TxBytes: bytesSent}) {
		t.Errorf("sender counted %+v", s)
	}
	if s := b.Stats(); s != (dataplane.Stats{RxPackets: n, RxBytes: bytesSent}) {
		t.Errorf("receiver counted %+v", s)
	}
}

func TestDatagramGoesToPeerOfDestination(t *testing.T) {
	a, b := testPair(t)
	var to netip.Addr
	var header []byte
	a.OnDatagram = func(d []byte, addr netip.Addr) { to, header = addr, bytes.Clone(d[:encap.HeaderLen]) }
	a.Load(udpPacket(podA, podB, 1, 2, nil))
	a.Send(1)
	want := fmt.Sprintf("0800000000000100%x%x0800", b.core.locals[carrier.Family4].mac[:], a.core.locals[carrier.Family4].mac[:])
	if got := fmt.Sprintf("%x", header); got != want || to != b.core.vteps[0].Addr {
		t.Errorf("sent to %s with header %s, want %s", to, got, want)
	}
}

func TestPartialChecksumIsCompleted(t *testing.T) {
	a, b := testPair(t)
	short := udpPacket(podA, podB, 1, 2, []byte("hello"))
	tests := map[string][]byte{
		"UDP":    short,
		"TCP":    tcpPacket(podA, podB, 7, []byte("hello")),
		"UDP v6": udpPacket(podA6, podB6, 1, 2, []byte("hello")),
		"TCP v6": tcpPacket(podA6, podB6, 7, []byte("hello")),
		"jumbo":  udpPacket(podA, podB, 1, 2, make([]byte, 9000)),
		"odd":    udpPacket(podA, podB, 1, 2, make([]byte, 1001)),
	}
	for name, packet := range tests {
		d := encapsulate(t, a, makePartial(bytes.Clone(packet)))
		if got := decapsulate(b, d); len(got) != 1 || !bytes.Equal(got[0], packet) {
			t.Errorf("%s: got %x, want %x", name, got, packet)
		}
	}
}

// TestPartialChecksumNotBeyondDatagram has bytes between the end of the UDP
// datagram and that of the IP packet, which its checksum does not cover.
func TestPartialChecksumNotBeyondDatagram(t *testing.T) {
	a, b := testPair(t)
	want := udpPacket(podA, podB, 1, 2, []byte("hell"))
	packet := append(makePartial(bytes.Clone(want)), "behind"...)
	binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)))
	binary.BigEndian.PutUint16(packet[10:], 0)
	binary.BigEndian.PutUint16(packet[10:], ^slowSum(packet[:20]))
	got := decapsulate(b, encapsulate(t, a, packet))
	if len(got) != 1 || !bytes.Equal(got[0][20:len(want)], want[20:]) {
		t.Errorf("got %x, want %x", got, want)
	}
}

func TestZeroChecksumIsSentAsOnes(t *testing.T) {
	a, b := testPair(t)
	packet := udpPacket(podA, podB, 1, 2, []byte{0, 0})
	// The payload that makes the sum of all else complement to zero.
	binary.BigEndian.PutUint16(packet[28:], binary.BigEndian.Uint16(packet[26:]))
	binary.BigEndian.PutUint16(packet[26:], 0)
	if got := decapsulate(b, encapsulate(t, a, makePartial(packet))); len(got) != 1 || binary.BigEndian.Uint16(got[0][26:]) != 0xffff || !sound(got[0]) {
		t.Errorf("got %x", got)
	}
}

func TestSuperpacketIsSplit(t *testing.T) {
	payload := make([]byte, 60000)
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	for name, packet := range map[string][]byte{
		"v4 partial":  makePartial(tcpPacket(podA, podB, 1<<32-100, payload)),
		"v4 complete": tcpPacket(podA, podB, 5, payload),
		"v6 partial":  makePartial(tcpPacket(podA6, podB6, 5, payload)),
	} {
		t.Run(name, func(t *testing.T) {
			a, b := testPair(t)
			segments := decapsulate(b, encapsulate(t, a, packet))
			var joined []byte
			seq := binary.BigEndian.Uint32(packet[headerLen(packet)+4:])
			for i, s := range segments {
				if len(s) > guessedMTU || !sound(s) {
					t.Fatalf("segment %d: %d bytes, sound: %t", i, len(s), sound(s))
				}
				if got := binary.BigEndian.Uint32(s[headerLen(s)+4:]); got != seq+uint32(len(joined)) {
					t.Fatalf("segment %d: sequence number %d, want %d", i, got, seq+uint32(len(joined)))
				}
				joined = append(joined, s[headerLen(s)+20:]...)
			}
			if !bytes.Equal(joined, payload) {
				t.Errorf("%d segments join to %d bytes, not to the payload", len(segments), len(joined))
			}
			if s := b.Stats(); s != (dataplane.Stats{RxPackets: 1, RxBytes: uint64(len(packet))}) {
				t.Errorf("counted %+v", s)
			}
		})
	}
}

// TestSmallSuperpacketIsSplit has one of two segments that together fit the
// device, but not a pod whose MTU is 1400.
func TestSmallSuperpacketIsSplit(t *testing.T) {
	a, b := testPair(t)
	packet := makePartial(tcpPacket(podA, podB, 5, make([]byte, testMTU-40)))
	for i, s := range decapsulate(b, encapsulate(t, a, packet)) {
		if len(s) > guessedMTU || !sound(s) {
			t.Errorf("segment %d: %d bytes, sound: %t", i, len(s), sound(s))
		}
	}
}

// TestSegmentsFitSmallMTU has an overlay whose MTU is below the guess.
func TestSegmentsFitSmallMTU(t *testing.T) {
	a, b := testPair(t)
	w := dataplane.Wanted{MTU: 600, Subnets: []netip.Prefix{subnetB}, Peers: []dataplane.Peer{{VTEP: a.VTEPs()[0], Subnets: []netip.Prefix{subnetA}}}}
	if err := b.Sync(w); err != nil {
		t.Fatal(err)
	}
	for i, s := range decapsulate(b, encapsulate(t, a, makePartial(tcpPacket(podA, podB, 5, make([]byte, 5000))))) {
		if len(s) > 600 {
			t.Errorf("segment %d is %d bytes long", i, len(s))
		}
	}
}

func TestNoAllocations(t *testing.T) {
	a, b := testPair(t)
	packet := udpPacket(podA, podB, 1, 2, make([]byte, 1000))
	giant := encapsulate(t, a, makePartial(tcpPacket(podA, podB, 1, make([]byte, 60000))))
	datagrams := map[string]carrier.Arrival{
		"receive":           encapsulate(t, a, packet),
		"receive and split": giant,
	}
	a.OnDatagram, b.OnPacket = nil, nil
	a.Load(packet)
	if n := testing.AllocsPerRun(100, func() { a.core.send[0].send(&a.end.packets[0]) }); n != 0 {
		t.Errorf("send: %v allocations per packet", n)
	}
	for name, d := range datagrams {
		dg := &carrier.Datagram{Buf: d.Payload, From: d.From}
		if n := testing.AllocsPerRun(100, func() { b.worker.receive(dg) }); n != 0 {
			t.Errorf("%s: %v allocations per packet", name, n)
		}
	}
}
