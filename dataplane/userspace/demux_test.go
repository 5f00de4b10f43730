package userspace

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/encap"
)

// sink is the device of a network: it counts the packets of that network, those of
// any other, and writes after the network was detached.
type sink struct {
	vni          byte // that the last byte of each packet is to name
	gone         atomic.Bool
	leaked, late atomic.Uint64
	put          int // since the last flush
}

func (s *sink) Write(p *carrier.Packet, _ *encap.IP, c *carrier.Counters) {
	if b := p.IP(); b[len(b)-1] != s.vni {
		s.leaked.Add(1)
	}
	if s.gone.Load() {
		s.late.Add(1)
	}
	s.put++
}

func (s *sink) Flush(c *carrier.Counters) {
	for ; s.put > 0; s.put-- {
		c.Carried(1)
	}
}

// sinkNet is a network without a device, whose overlay addresses are those of podA and podB.
func sinkNet(tb testing.TB, vni uint32, from dataplane.VTEP) (*core, *sink) {
	tb.Helper()
	addr := netip.MustParseAddr("192.0.2.3")
	c := newCore(Config{Underlays: []dataplane.Underlay{{Local: addr, Public: addr}}, VNI: vni, Port: testPort}, nil, 0)
	from.MAC, from.VNI = dataplane.MAC(from.Addr, vni), vni
	if err := c.sync(dataplane.Wanted{MTU: testMTU, Subnets: []netip.Prefix{subnetB}, Peers: []dataplane.Peer{{VTEP: from, Subnets: []netip.Prefix{subnetA}}}}); err != nil {
		tb.Fatal(err)
	}
	return c, &sink{vni: byte(vni)}
}

// vniPacket is what a VTEP sends on a network: its last byte names it.
func vniPacket(to *core, vni uint32) []byte {
	t := encap.NewTemplate(vni, to.locals[carrier.Family4].mac, encap.MAC{2, 9})
	b := append(make([]byte, encap.HeaderLen), udpPacket(podA, podB, 1, 2, []byte{0, byte(vni)})...)
	t.Put(b, encap.EtherTypeIPv4)
	return b
}

// TestOneReceiveForSeveralNetworks has datagrams of two networks, and of none, in one
// receive: each is counted once, where it belongs.
func TestOneReceiveForSeveralNetworks(t *testing.T) {
	from := dataplane.VTEP{Addr: netip.MustParseAddr("192.0.2.2")}
	var w receiveWorker
	var cores [3]*core
	for i := range cores {
		c, s := sinkNet(t, uint32(i+1), from)
		cores[i] = c
		w.attach(uint32(i+1), c.newLane(carrier.Family4, nil, s))
	}
	w.detach(3)
	var payload []byte
	one := len(vniPacket(cores[0], 1))
	for _, vni := range []uint32{1, 2, 3, 2, 1, 7, 1, 0xffffff} {
		to := cores[0]
		if vni == 2 {
			to = cores[1]
		}
		payload = append(payload, vniPacket(to, vni)...)
	}
	payload = append(payload, 8, 0, 0) // too short for a VNI
	var wire carrier.Wire
	wire.LoadDatagrams(carrier.Arrival{Payload: payload, From: from.Addr, GRO: one})
	wire.Rewind(1)
	w.receiver = wire.Receiver()
	if err := w.run(context.Background(), endOnError); err != carrier.ErrEnd {
		t.Fatal(err)
	}
	for i, want := range []uint64{3, 2, 0} {
		var s dataplane.Stats
		cores[i].addTo(&s)
		if s.RxPackets != want || s.Drops != [dataplane.NumDrops]uint64{} {
			t.Errorf("network %d counted %+v, want %d packets", i+1, s, want)
		}
	}
	var s dataplane.Stats
	w.AddTo(&s.RxPackets, &s.RxBytes, &s)
	if s.RxPackets != 0 || s.Drops[dataplane.DropBadVNI] != 3 || s.Drops[dataplane.DropBadHeader] != 1 {
		t.Errorf("the worker counted %+v", s)
	}
	if w.inside {
		t.Error("the worker still holds its lock")
	}
}

// TestDetachWaits has datagrams of a batch under way when their network is taken away.
func TestDetachWaits(t *testing.T) {
	from := dataplane.VTEP{Addr: netip.MustParseAddr("192.0.2.2")}
	var w receiveWorker
	c, s := sinkNet(t, 1, from)
	l := c.newLane(carrier.Family4, nil, s)
	w.attach(1, l)
	d := carrier.Datagram{Buf: vniPacket(c, 1), From: from.Addr}
	w.receive(&d)
	detached := make(chan struct{})
	go func() { w.detach(1); s.gone.Store(true); close(detached) }()
	for range 1000 {
		w.receive(&d) // the same batch
	}
	select {
	case <-detached:
		t.Error("detached inside a batch")
	default:
	}
	w.flush()
	<-detached
	w.receive(&d)
	w.flush()
	var st dataplane.Stats
	c.addTo(&st)
	if st.RxPackets != 1001 || s.late.Load() != 0 {
		t.Errorf("%d packets, %d after the end", st.RxPackets, s.late.Load())
	}
}

// TestDemuxNoAllocations has batches that touch two networks.
func TestDemuxNoAllocations(t *testing.T) {
	from := dataplane.VTEP{Addr: netip.MustParseAddr("192.0.2.2")}
	var w receiveWorker
	var ds [2]carrier.Datagram
	for i := range ds {
		c, s := sinkNet(t, uint32(i+1), from)
		w.attach(uint32(i+1), c.newLane(carrier.Family4, nil, s))
		ds[i] = carrier.Datagram{Buf: vniPacket(c, uint32(i+1)), From: from.Addr}
	}
	if n := testing.AllocsPerRun(100, func() { w.receive(&ds[0]); w.receive(&ds[1]); w.flush() }); n != 0 {
		t.Errorf("%v allocations per batch", n)
	}
}

// TestRunEndsWhileNetworkComes is for the race detector.
func TestRunEndsWhileNetworkComes(t *testing.T) {
	from := dataplane.VTEP{Addr: netip.MustParseAddr("192.0.2.2")}
	var wire carrier.Wire
	w := receiveWorker{receiver: wire.Receiver()}
	ended := make(chan error)
	go func() { ended <- w.run(context.Background(), endOnError) }()
	c, s := sinkNet(t, 1, from)
	w.attach(1, c.newLane(carrier.Family4, nil, s))
	if err := <-ended; err != carrier.ErrEnd {
		t.Error(err)
	}
}
