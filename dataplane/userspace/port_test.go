package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// share gives h a Port, runs it, and returns how to stop it.
func (h *host) share() (stop func() error) {
	h.tb.Helper()
	var err error
	if h.shared, err = NewPort(h.config()); err != nil {
		h.tb.Fatal(err)
	}
	return h.runner(h.shared.Run)
}

// on returns h as it is in another network: 10.<40+vni>.0.0/16.
func (h *host) on(vni uint32) *host {
	n := *h
	b := h.subnet.Addr().As4()
	b[1] = byte(40 + vni)
	n.vni, n.subnet, n.vteps = vni, netip.PrefixFrom(netip.AddrFrom4(b), 24), nil
	return &n
}

// network returns the overlay network of h.
func (h *host) network() netip.Prefix {
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
	open := func(vni uint32) (ends [2]*host, stop func()) {
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
// one that comes and goes, and hammers all of them, and one that is not there. Each
// datagram is counted once, and no network sees another's.
func TestNetworksDoNotLeak(t *testing.T) {
	a, b := hammered(t, "192.0.2.2"), hammered(t, "192.0.2.3")
	netnstest.LAN(t, "192.0.2.0/24", a.ns, b.ns)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	from := dataplane.VTEP{Addr: a.addr}
	const perNetwork = 250_000
	var cores [4]*core
	var sinks [4][]*sink
	for vni := uint32(1); vni < 3; vni++ {
		b.attach(t, vni, from, &cores, &sinks)
	}
	a.attach(t, 9, from, nil, nil) // opens the sockets
	go func() { ran <- b.port.Run(ctx) }()

	var wg sync.WaitGroup
	for vni := uint32(1); vni <= 4; vni++ {
		wg.Go(func() { a.hammer(b.addr, vni, perNetwork) })
	}
	sent := make(chan struct{})
	go func() { wg.Wait(); close(sent) }()
	var detached []*core
	for done := false; !done; {
		select {
		case <-sent:
			done = true
		default:
			b.attach(t, 3, from, &cores, &sinks)
			time.Sleep(time.Millisecond) // let it carry something
			b.port.exit(3)
			for _, s := range sinks[3] {
				s.gone.Store(true)
			}
			detached = append(detached, cores[3])
		}
	}
	total := func() (n uint64) {
		s := b.port.Stats()
		for _, c := range append(detached, cores[1], cores[2]) {
			c.addTo(&s)
		}
		n = s.RxPackets
		for _, d := range s.Drops {
			n += d
		}
		return n
	}
	eventually(t, "every datagram in the books", func() bool { return total() >= 4*perNetwork })
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	s := b.port.Stats()
	t.Logf("the port: %+v; %d times network 3", s, len(detached))
	if got := total(); got != 4*perNetwork {
		t.Errorf("%d datagrams in the books, sent were %d", got, 4*perNetwork)
	}
	if s.Drops[dataplane.DropBadVNI] == 0 {
		t.Error("no datagram of the network that is not there")
	}
	for vni := range sinks {
		for _, s := range sinks[vni] {
			if s.leaked.Load()+s.late.Load() > 0 {
				t.Errorf("network %d: %d packets of others, %d after its end", vni, s.leaked.Load(), s.late.Load())
			}
		}
	}
	for _, c := range cores[1:3] {
		var s dataplane.Stats
		if c.addTo(&s); s.RxPackets == 0 || s.Drops != [dataplane.NumDrops]uint64{} {
			t.Errorf("network %d: %+v", c.vteps[0].VNI, s)
		}
	}
}

// hammeredHost is a host with a Port and no devices.
type hammeredHost struct {
	ns   *netnstest.NS
	addr netip.Addr
	port *Port
}

func hammered(t *testing.T, addr string) *hammeredHost {
	h := &hammeredHost{ns: netnstest.New(t), addr: netip.MustParseAddr(addr)}
	h.port = newPort(Config{Log: slog.New(slog.DiscardHandler), Port: testPort, Offloads: AllOffloads,
		Underlays: []dataplane.Underlay{{Local: h.addr, Public: h.addr}}})
	t.Cleanup(h.port.end)
	return h
}

// attach adds a network whose device is a sink for each worker.
func (h *hammeredHost) attach(t *testing.T, vni uint32, from dataplane.VTEP, cores *[4]*core, sinks *[4][]*sink) {
	t.Helper()
	h.ns.Must(func() error { return h.port.enter(vni, true) })
	if cores == nil {
		return
	}
	for i, w := range h.port.workers {
		c, s := sinkNet(t, vni, from)
		if i == 0 {
			cores[vni] = c
		}
		sinks[vni] = append(sinks[vni], s)
		w.attach(vni, cores[vni].newLane(w.family, s))
	}
}

// hammer sends n datagrams of a network.
func (h *hammeredHost) hammer(to netip.Addr, vni uint32, n int) {
	senders := h.port.newSenders()
	s := senders[family4]
	cfg := Config{Underlays: []dataplane.Underlay{{Local: to, Public: to}}, VNI: vni}
	payload := vniPacket(newCore(cfg, 0), vni)
	e := &entry{addr: to, sockaddr: newSockaddr(netip.AddrPortFrom(to, testPort))}
	var c counters
	for i := range n {
		p := packet{buf: payload}
		s.Send(&p, e, &c)
		if i%20 == 19 {
			s.Flush(&c)
		}
	}
	s.Flush(&c)
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
// has closed its sockets.
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
	if err := h.run(d)(); err != nil {
		t.Fatal(err)
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
