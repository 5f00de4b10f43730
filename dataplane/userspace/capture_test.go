package userspace

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/capture"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/encap"
)

// capturing begins a capture of what m does.
func capturing(tb testing.TB, m *Memory, f capture.Filter) *capture.Capture {
	tb.Helper()
	m.core.captures = new(capture.Hub)
	m.core.show()
	m.core.captures.Join(0, &m.worker.Point)
	c, err := m.core.captures.Start(f)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// captured returns the packets that c has.
func captured(tb testing.TB, c *capture.Capture) (ps []capture.Packet) {
	tb.Helper()
	r := capture.NewReader(bytes.NewReader(c.Append(nil, 1<<20)))
	for {
		var f capture.Frame
		if err := r.Next(&f); errors.Is(err, io.EOF) {
			return ps
		} else if err != nil {
			tb.Fatal(err)
		}
		f.Packet.Data, f.Packet.Time = bytes.Clone(f.Packet.Data), 0
		ps = append(ps, f.Packet)
	}
}

// requireCaptured wants these packets, whose time is 0.
func requireCaptured(t *testing.T, c *capture.Capture, want ...capture.Packet) {
	t.Helper()
	got := captured(t, c)
	equal := func(a, b capture.Packet) bool {
		return a.Meta == b.Meta && a.VNI == b.VNI && a.Length == b.Length && bytes.Equal(a.Data, b.Data)
	}
	if !slices.EqualFunc(got, want, equal) {
		t.Errorf("captured %+v\nwant %+v", got, want)
	}
}

// whole is a packet that was captured whole.
func whole(vni uint32, m capture.Meta, b []byte) capture.Packet {
	return capture.Packet{Meta: m, VNI: vni, Length: len(b), Data: bytes.Clone(b)}
}

func TestCaptureOfWhatIsSent(t *testing.T) {
	a, b := testPairOf(t, AllOffloads)
	c := capturing(t, a, capture.Filter{})
	to := b.core.vteps[0].Addr
	super := makePartial(tcpPacket(podA, podB, 1, make([]byte, 5000)))
	var ip encap.IP
	_ = encap.ParseIP(super, &ip)
	o, _ := encap.SuperOffload(super, &ip, 1000)
	datagram := encapsulate(t, a, udpPacket(podA, podB, 1, 2, []byte("hello"))).Payload
	meta := capture.Meta{Verdict: capture.Sent, Form: capture.Datagram, Peer: to}
	requireCaptured(t, c, whole(testVNI, meta, datagram))

	encapsulateOffload(a, o, super)
	template := a.core.forwarding.Load().subnets.Lookup(podB).Template
	head := make([]byte, encap.HeaderLen)
	template.Put(head, encap.EtherTypeIPv4)
	requireCaptured(t, c, whole(testVNI, meta.With(&o), append(head, super...)))

	o.Size = 0 // nobody can split it
	encapsulateOffload(a, o, super)
	lost := capture.Meta{Verdict: capture.Dropped(dataplane.DropBadHeader), Form: capture.IP, Peer: to}
	requireCaptured(t, c, whole(testVNI, meta.With(&o), append(head, super...)), whole(testVNI, lost, super))
}

func TestCaptureOfWhatIsNotSent(t *testing.T) {
	a, b := testPair(t)
	c := capturing(t, a, capture.Filter{})
	to := b.core.vteps[0].Addr
	long := udpPacket(podA, podB, 1, 2, make([]byte, 1000))
	long[6] |= 0x40 // DF
	a.core.forwarding.Load().subnets.Lookup(podB).Peer.SetMTU(600)
	for _, test := range []struct {
		packet []byte
		why    dataplane.Drop
		to     netip.Addr
	}{
		{make([]byte, 100), dataplane.DropBadHeader, netip.Addr{}},
		{udpPacket(podA, netip.MustParseAddr("10.42.9.1"), 1, 2, nil), dataplane.DropNoRoute, netip.Addr{}},
		{long, dataplane.DropTooBig, to},
	} {
		a.Load(test.packet)
		a.Send(1)
		requireCaptured(t, c, whole(testVNI, capture.Meta{Verdict: capture.Dropped(test.why), Form: capture.IP, Peer: test.to}, test.packet))
	}
}

func TestCaptureOfWhatIsReceived(t *testing.T) {
	const eth, ip = encap.VXLANLen, encap.HeaderLen
	set := func(i int, v ...byte) func(*carrier.Arrival) {
		return func(d *carrier.Arrival) { copy(d.Payload[i:], v) }
	}
	giant := tcpPacket(podA, podB, 1, make([]byte, 3000))
	giant[len(giant)-1]++
	unknown := netip.MustParseAddr("192.0.2.9")
	for _, test := range []struct {
		change  func(*carrier.Arrival)
		verdict capture.Verdict
		vni     uint32
	}{
		{set(0), capture.Received, testVNI},
		{set(0, 0), capture.Dropped(dataplane.DropBadVNI), 0},
		{func(d *carrier.Arrival) { d.Payload = d.Payload[:7] }, capture.Dropped(dataplane.DropBadHeader), 0},
		{func(d *carrier.Arrival) { d.Payload = d.Payload[:30] }, capture.Dropped(dataplane.DropBadHeader), testVNI},
		{func(d *carrier.Arrival) { d.From = unknown }, capture.Dropped(dataplane.DropUnknownVTEP), testVNI},
		{set(eth, 2, 2), capture.Dropped(dataplane.DropBadMAC), testVNI},
		{set(ip+12, 10, 42, 3), capture.Dropped(dataplane.DropBadSource), testVNI},
		{set(ip+16, 10, 42, 3), capture.Dropped(dataplane.DropBadDestination), testVNI},
		{func(d *carrier.Arrival) { d.Payload = append(d.Payload[:ip:ip], giant...) }, capture.Dropped(dataplane.DropBadChecksum), testVNI},
		{func(d *carrier.Arrival) { d.ECN = encap.ECNCE }, capture.Dropped(dataplane.DropCongestion), testVNI},
	} {
		a, b := testPair(t)
		d := encapsulate(t, a, udpPacket(podA, podB, 1, 2, []byte("hello")))
		test.change(&d)
		want := whole(test.vni, capture.Meta{Verdict: test.verdict, Form: capture.Arrival, Peer: d.From}, d.Payload)
		if test.verdict == capture.Received {
			want.Form = capture.Datagram
		}
		c := capturing(t, b, capture.Filter{})
		decapsulate(b, d)
		requireCaptured(t, c, want)
	}
}

// refusingDevice is a device that takes no packet.
type refusingDevice struct{}

func (refusingDevice) Write([]byte) (int, error) { return 0, errors.New("no buffer space") }
func (refusingDevice) writeParts(*[vnetLen]byte, [][]byte) (ok, refused bool) {
	return false, false
}

func TestCaptureOfWhatTheHostRefuses(t *testing.T) {
	packets := [][]byte{tcpPacket(podA, podB, 1, make([]byte, 1000)), tcpPacket(podA, podB, 1001, make([]byte, 1000))}
	for name, w := range map[string]writer{"plain": newPlain(refusingDevice{}), "vnet": newVnetWriter(refusingDevice{}, true, true)} {
		a, b := testPair(t)
		b.core.lanes[0].writer = w
		c := capturing(t, b, capture.Filter{Drops: true})
		b.LoadDatagrams(encapsulateAll(a, packets)...)
		b.Receive(2)
		n := 0
		for _, p := range captured(t, c) {
			if p.Verdict != capture.Dropped(dataplane.DropWriteError) || p.Form != capture.IP || p.Peer.IsValid() {
				t.Errorf("%s: %+v", name, p.Meta)
			}
			n += p.Length - 40
			if p.GSO != encap.GSONone && p.Size != 1000 {
				t.Errorf("%s: a superpacket of segments of %d", name, p.Size)
			}
		}
		if n != 2000 || b.Stats().Drops[dataplane.DropWriteError] != 2 {
			t.Errorf("%s: captured %d bytes of payload, want 2000; %+v", name, n, b.Stats())
		}
	}
}

// TestCaptureOfOnePeer has peers behind NATs, told by the address that they publish.
func TestCaptureOfOnePeer(t *testing.T) {
	m, err := sourceNode(t, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, sourcePeer(1, ""), sourcePeer(3, "10.0.0.33"), sourcePeer(4, ""))
	if err != nil {
		t.Fatal(err)
	}
	c := capturing(t, m, capture.Filter{Peers: []netip.Addr{netip.MustParseAddr("192.0.2.3")}})
	for _, d := range [][2]string{
		{"192.0.2.3", "10.42.3.2"},
		{"10.0.0.33", "10.42.3.2"}, // its outer source
		{"10.0.0.9", "10.42.3.2"},  // that of any peer
		{"192.0.2.3", "10.42.1.2"}, // dropped
		{"192.0.2.1", "10.42.1.2"},
		{"192.0.2.1", "10.42.3.2"}, // dropped, of another peer
		{"10.0.0.9", "10.42.4.2"},
	} {
		judgeSource(t, m, netip.MustParseAddr(d[0]), netip.MustParseAddr(d[1]))
	}
	var got []string
	for _, p := range captured(t, c) {
		got = append(got, p.Verdict.String())
	}
	if want := []string{"rx", "rx", "rx", "drop:bad_source"}; !slices.Equal(got, want) {
		t.Errorf("captured %v, want %v", got, want)
	}
}

func TestCaptureAllocatesNothing(t *testing.T) {
	a, b := testPair(t)
	packet := udpPacket(podA, podB, 1, 2, make([]byte, 1000))
	good, bad := encapsulate(t, a, packet), encapsulate(t, a, packet)
	bad.Payload = bytes.Clone(bad.Payload)
	bad.Payload[encap.HeaderLen+12] = 11 // its inner source
	a.OnDatagram, b.OnPacket = nil, nil
	cs := []*capture.Capture{capturing(t, a, capture.Filter{}), capturing(t, b, capture.Filter{})}
	lost := udpPacket(podA, netip.MustParseAddr("10.42.9.1"), 1, 2, nil)
	a.Load(packet, lost)
	for _, state := range []string{"with room", "full"} {
		for what, do := range map[string]func(){
			"send":           func() { a.core.send[0].send(&a.end.packets[0]) },
			"no route":       func() { a.core.send[0].send(&a.end.packets[1]) },
			"receive":        func() { b.worker.receive(&carrier.Datagram{Buf: good.Payload, From: good.From}) },
			"receive, wrong": func() { b.worker.receive(&carrier.Datagram{Buf: bad.Payload, From: bad.From}) },
		} {
			if n := testing.AllocsPerRun(100, do); n != 0 {
				t.Errorf("%s, %s: %v allocations per packet", what, state, n)
			}
		}
		for _, c := range cs {
			for c.Lost() == 0 {
				a.core.send[0].send(&a.end.packets[0])
				b.worker.receive(&carrier.Datagram{Buf: good.Payload, From: good.From})
			}
		}
	}
}

// TestCaptureOutlivesDataplane: a capture sees a network, whichever Dataplane carries it now.
func TestCaptureOutlivesDataplane(t *testing.T) {
	hub := new(capture.Hub)
	c, err := hub.Start(capture.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	addr, vtep := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	packet := udpPacket(podA, podB, 1, 2, []byte("hello"))
	for range 2 {
		t.Run("", func(t *testing.T) {
			cfg := Config{Log: slog.New(slog.DiscardHandler), VNI: testVNI, Port: testPort, MTU: testMTU, Captures: hub, Underlays: []dataplane.Underlay{{Local: addr, Public: addr}}}
			h := &dummyHost{out: make(chan []byte), in: make(chan []byte, 10), done: make(chan struct{})}
			wire := &dummyCarrier{from: addr, out: make(chan carrier.Datagram), in: make(chan carrier.Datagram), done: make(chan struct{})}
			d, err := newDataplane(cfg, h, newPort(cfg, wire.opener(carrier.Family4)))
			if err != nil {
				t.Fatal(err)
			}
			peer := dataplane.Peer{VTEP: dataplane.VTEP{Addr: vtep, MAC: encap.MAC{2}, VNI: testVNI}, Subnets: []netip.Prefix{subnetB}}
			if _, err := d.Sync(t.Context(), dataplane.Wanted{MTU: testMTU, Subnets: []netip.Prefix{subnetA}, Peers: []dataplane.Peer{peer}}); err != nil {
				t.Fatal(err)
			}
			runUntilEnd(t, d)
			h.out <- packet
			<-wire.out
			wire.in <- carrier.Datagram{Buf: []byte{1, 2, 3}, From: vtep}
			wire.in <- carrier.Datagram{Buf: make([]byte, 100), From: vtep} // once it is taken, the one before is captured
		})
		var got []string
		for _, p := range captured(t, c) {
			got = append(got, p.Verdict.String())
		}
		if want := []string{"tx", "drop:bad_header", "drop:bad_vni"}; !slices.Equal(got, want) {
			t.Errorf("captured %v, want %v", got, want)
		}
	}
}
