package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/encap"
)

// share gives h a Port, runs it, and returns how to stop it.
func (h *testHost) share() (stop func() error) {
	h.tb.Helper()
	var err error
	if h.shared, err = NewPort(h.config()); err != nil {
		h.tb.Fatal(err)
	}
	return h.runner(h.shared.Run)
}

// on returns h as it is in another network: 10.<40+vni>.0.0/16.
func (h *testHost) on(vni uint32) *testHost {
	n := *h
	b := h.subnet.Addr().As4()
	b[1] = byte(40 + vni)
	n.vni, n.subnet, n.vteps = vni, netip.PrefixFrom(netip.AddrFrom4(b), 24), nil
	return &n
}

// network returns the overlay network of h.
func (h *testHost) network() netip.Prefix {
	p, _ := h.subnet.Addr().Prefix(16)
	return p
}

// TestSharedPort has three networks on one port of two hosts. One comes and goes
// while the others carry traffic, over both underlays.
func TestSharedPort(t *testing.T) {
	hosts := newDualHosts(t, 2, 4, 6)
	for _, h := range hosts {
		h.subnet6 = netip.Prefix{}
		h.share()
	}
	open := func(vni uint32) (ends [2]*testHost, stop func()) {
		var stops []func() error
		var ds []*Dataplane
		for i, h := range hosts {
			ends[i] = h.on(vni)
			ds = append(ds, ends[i].open())
		}
		for i, e := range ends {
			e.sync(ds[i], ends[1-i])
			stops = append(stops, e.run(ds[i]))
		}
		return ends, func() {
			for i, s := range stops {
				if err := s(); err != nil {
					t.Error(err)
				}
				if s := ds[i].Stats(); s.Drops[dataplane.DropBadVNI]+s.Drops[dataplane.DropBadSource]+s.Drops[dataplane.DropBadMAC] > 0 {
					t.Errorf("VNI %d: %+v", vni, s)
				}
			}
		}
	}
	var wg sync.WaitGroup
	for vni := uint32(1); vni <= 2; vni++ {
		ends, stop := open(vni)
		defer stop()
		wg.Go(func() {
			for range 5 {
				transfer(t, ends[0].NS, ends[1].NS, ends[1].subnet.Addr())
			}
		})
	}
	defer wg.Wait()
	for range 3 {
		ends, stop := open(3)
		transfer(t, ends[1].NS, ends[0].NS, ends[0].subnet.Addr())
		stop()
	}
}

// TestNetworksDoNotLeak has two networks with the same overlay addresses on one port, and
// one that comes and goes, and hammers all of them, and one that is not there, with a
// million datagrams. Each is counted once, and no network sees another's.
func TestNetworksDoNotLeak(t *testing.T) {
	a, b := hammered(t, "192.0.2.2"), hammered(t, "192.0.2.3")
	netnstest.LAN(t, "192.0.2.0/24", a.ns, b.ns)
	a.ns.Must(func() error { return a.port.enter(9, pairs(true), entrance{}) }) // opens the sockets
	from := dataplane.VTEP{Addr: a.addr}
	b.port.flood.begin = math.MaxUint64 // every datagram is to be counted by its reason
	first := b.attach(t, 1, from)
	second := b.attach(t, 2, from)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- b.port.Run(ctx) }()

	const perNetwork = 250_000
	var wg sync.WaitGroup
	var sent atomic.Uint64
	for vni := uint32(1); vni <= 4; vni++ {
		wg.Go(func() { a.hammer(b, vni, perNetwork, &sent) })
	}
	var detached uint64
	for sent.Load() < 4*perNetwork {
		third := b.attach(t, 3, from)
		before := sent.Load()
		eventually(t, "traffic", func() bool { return sent.Load() >= min(before+20_000, 4*perNetwork) })
		b.port.exit(3)
		for _, s := range third.sinks {
			s.gone.Store(true)
		}
		detached++
	}
	wg.Wait()
	eventually(t, "every datagram in the books", func() bool { return b.counted() >= 4*perNetwork })
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	s := b.port.Stats()
	t.Logf("the port: %+v; network 3 came %d times", s, detached)
	if got := b.counted(); got != 4*perNetwork || s.Drops[dataplane.DropBadVNI] < perNetwork {
		t.Errorf("%d datagrams in the books, sent were %d: %+v", got, 4*perNetwork, s)
	}
	for _, n := range b.networks {
		for _, s := range n.sinks {
			if s.leaked.Load()+s.late.Load() > 0 {
				t.Errorf("network %d: %d packets of others, %d after its end", s.vni, s.leaked.Load(), s.late.Load())
			}
		}
	}
	for _, n := range []sinkNetwork{first, second} {
		var s dataplane.Stats
		if n.addTo(&s); s.RxPackets < perNetwork/2 || s.Drops != [dataplane.NumDrops]uint64{} {
			t.Errorf("network %d: %+v", n.vteps[0].VNI, s)
		}
	}
}

// sinkNetwork is a network without a device; each worker has a sink.
type sinkNetwork struct {
	*core
	sinks []*sink
}

// hammeredHost is a host with a Port and no devices.
type hammeredHost struct {
	ns   *netnstest.NS
	addr netip.Addr
	port *Port

	mu       sync.Mutex
	networks []sinkNetwork // all that ever were
}

func hammered(t *testing.T, addr string) *hammeredHost {
	h := &hammeredHost{ns: netnstest.New(t), addr: netip.MustParseAddr(addr)}
	h.port = newUDPPort(Config{Log: slog.New(slog.DiscardHandler), Port: testPort, Offloads: AllOffloads,
		Underlays: []dataplane.Underlay{{Local: h.addr, Public: h.addr}}})
	t.Cleanup(h.port.close)
	return h
}

// attach adds a network.
func (h *hammeredHost) attach(t *testing.T, vni uint32, from dataplane.VTEP) (n sinkNetwork) {
	t.Helper()
	h.ns.Must(func() error { return h.port.enter(vni, pairs(true), entrance{}) })
	n.core, _ = sinkNet(t, vni, from)
	lanes := make([]*lane, len(h.port.workers))
	for i, w := range h.port.workers {
		s := &sink{vni: byte(vni)}
		n.sinks = append(n.sinks, s)
		lanes[i] = n.newLane(w.family, w.receiver, s)
	}
	h.mu.Lock()
	h.networks = append(h.networks, n)
	h.mu.Unlock()
	for i, w := range h.port.workers {
		w.attach(vni, lanes[i])
	}
	return n
}

// counted returns how many datagrams are in the books.
func (h *hammeredHost) counted() (n uint64) {
	s := h.port.Stats()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, net := range h.networks {
		net.addTo(&s)
	}
	n = s.RxPackets
	for _, d := range s.Drops {
		n += d
	}
	return n
}

// hammer sends n datagrams of a network to a host, never more than its sockets hold: what
// a full backlog drops is in nobody's books.
func (h *hammeredHost) hammer(to *hammeredHost, vni uint32, n int, sent *atomic.Uint64) {
	s := h.port.newSenders()[carrier.Family4]
	cfg := Config{Underlays: []dataplane.Underlay{{Local: to.addr, Public: to.addr}}, VNI: vni}
	payload := vniPacket(newCore(cfg, nil, 0), vni)
	e := entryTo(netip.AddrPortFrom(to.addr, testPort))
	var c carrier.Counters
	const burst = 250
	for range n / burst {
		for range burst {
			p := carrier.Packet{Buf: payload, At: encap.HeaderLen}
			s.Send(&p, e, false, &c)
		}
		s.Flush(&c)
		for at := sent.Add(burst); at > to.counted()+5000; {
			runtime.Gosched()
		}
	}
}

// TestVNIIsTakenOnce opens a VNI twice on one Port.
func TestVNIIsTakenOnce(t *testing.T) {
	h := newHost(t)
	h.share()
	h.run(h.open())
	if err := h.Do(func() error { _, err := Open(h.config()); return err }); !errors.Is(err, ErrVNITaken) {
		t.Errorf("got %v", err)
	}
}

// TestTwoPortsAreRefused is what two daemons on one port are told.
func TestTwoPortsAreRefused(t *testing.T) {
	h := newHost(t)
	h.run(h.open())
	other := h.on(2)
	err := other.Do(func() error { _, err := Open(other.config()); return err })
	if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), fmt.Sprintf("port %d is in use", testPort)) {
		t.Errorf("got %v", err)
	}
}

// TestPortAfterRun: a Port that has ended takes no network, and one that has none left
// has closed its sockets. One that it has ends: it would receive nothing any more.
func TestPortAfterRun(t *testing.T) {
	h := newHost(t)
	stop := h.share()
	d := h.open()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	other := h.on(2)
	if err := other.Do(func() error { _, err := Open(other.config()); return err }); !errors.Is(err, errPortClosed) {
		t.Errorf("open after Run: %v", err)
	}
	h.sync(d)
	if err := h.Do(func() error { return d.Run(t.Context(), func() {}) }); !errors.Is(err, errPortClosed) {
		t.Errorf("Run of a network without its port: %v", err)
	}
	h.shared.Stats()
	h.shared = nil
	h.run(h.open()) // the sockets are free
}

// TestPortOpensAgain has the first network fail to bind.
func TestPortOpensAgain(t *testing.T) {
	h := newHost(t)
	addr := h.under[0]
	h.under[0] = netip.MustParseAddr("198.51.100.7")
	h.share()
	if err := h.Do(func() error { _, err := Open(h.config()); return err }); !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("got %v", err)
	}
	h.Addr("lo", "198.51.100.7/32")
	h.run(h.open())
	h.under[0] = addr
}
