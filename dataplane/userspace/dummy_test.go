package userspace

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/encap"
)

// dummyHost is a host that is a pair of channels: how a TCP/IP stack would be one.
type dummyHost struct {
	out, in chan []byte // from the host, and to it
	packet  carrier.Packet
	done    chan struct{}
	wanted  dataplane.Wanted
}

func (h *dummyHost) queues() []queue { return []queue{h} }
func (h *dummyHost) close() error    { return nil }
func (h *dummyHost) stop()           { close(h.done) }
func (h *dummyHost) sync(w dataplane.Wanted) ([]dataplane.ObjectStatus, []dataplane.Change, error) {
	h.wanted = w
	return nil, nil, nil
}

func (h *dummyHost) Read(flush func()) (*carrier.Packet, error) {
	flush()
	select {
	case b := <-h.out:
		h.packet = carrier.Packet{Buf: append(make([]byte, dummyHeadroom), b...), At: dummyHeadroom}
		return &h.packet, nil
	case <-h.done:
		return nil, os.ErrDeadlineExceeded
	}
}

func (h *dummyHost) Answer(p *carrier.Packet) { h.in <- bytes.Clone(p.IP()) }

// dummyWriter gives the host what it gets, one by one.
type dummyWriter struct{ *dummyHost }

func (h *dummyHost) newWriter() writer { return dummyWriter{h} }
func (w dummyWriter) Write(p *carrier.Packet, _ *encap.IP, c *carrier.Counters) {
	c.Carried(len(p.IP()))
	w.in <- bytes.Clone(p.IP())
}
func (w dummyWriter) Flush(*carrier.Counters) {}

const dummyHeadroom = 80 // more than UDP sockets need

// dummyCarrier is a wire to one other dummyCarrier, which tells all that it knows of a packet.
type dummyCarrier struct {
	from    netip.Addr
	out, in chan carrier.Datagram
	done    chan struct{}
}

func (d *dummyCarrier) NewSender() carrier.Sender         { return d }
func (d *dummyCarrier) Receivers() []carrier.Receiver     { return []carrier.Receiver{d} }
func (d *dummyCarrier) Refresh([]carrier.Entry, int) bool { return false }
func (d *dummyCarrier) AddTo(s *dataplane.Stats)          { s.Offload.RxBatches++ }
func (d *dummyCarrier) Close()                            {}
func (d *dummyCarrier) Stop()                             { close(d.done) }
func (d *dummyCarrier) Flush(*carrier.Counters)           {}
func (d *dummyCarrier) opener(family int) carrier.Opener {
	return carrier.Opener{Description: carrier.Description{Family: family, Headroom: dummyHeadroom}, Open: func(int) (carrier.Carrier, error) { return d, nil }}
}

func (d *dummyCarrier) Send(p *carrier.Packet, e *carrier.Entry, _ bool, c *carrier.Counters) {
	c.Sent(e.Peer, 1, len(p.IP()))
	d.out <- carrier.Datagram{Buf: bytes.Clone(p.Datagram()), From: d.from, Exact: true, Offload: p.Offload}
}

func (d *dummyCarrier) Receive(dg *carrier.Datagram, flush func()) error {
	flush()
	select {
	case *dg = <-d.in:
		return nil
	case <-d.done:
		return os.ErrDeadlineExceeded
	}
}

// TestDummyHostAndCarrier runs traffic between two dataplanes of dummies: nothing else is needed
// for another host or another carrier.
func TestDummyHostAndCarrier(t *testing.T) {
	hosts, ds := dummyPair(t, func(h *dummyHost) host { return h })
	for _, d := range ds {
		runUntilEnd(t, d)
	}
	ping, pong := udpPacket(podA, podB, 1, 2, []byte("ping")), makePartial(udpPacket(podB, podA, 2, 1, []byte("pong")))
	hosts[0].out <- ping
	if got := <-hosts[1].in; !bytes.Equal(got, ping) {
		t.Errorf("got %x, want %x", got, ping)
	}
	hosts[1].out <- pong
	if got := <-hosts[0].in; !bytes.Equal(got, pong) { // exact: nobody guesses that its checksum is partial
		t.Errorf("got %x, want %x", got, pong)
	}
}

// dummyPair makes two dataplanes of dummies that know each other. wrap makes what they take for their hosts.
func dummyPair(t *testing.T, wrap func(*dummyHost) host) (hosts [2]*dummyHost, ds [2]*Dataplane) {
	t.Helper()
	wire := [2]chan carrier.Datagram{make(chan carrier.Datagram, 10), make(chan carrier.Datagram, 10)}
	subnets := [2]netip.Prefix{subnetA, subnetB}
	for i := range ds {
		addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})
		cfg := Config{Log: slog.New(slog.DiscardHandler), VNI: testVNI, Port: testPort, MTU: testMTU, Underlays: []dataplane.Underlay{{Local: addr, Public: addr}}}
		hosts[i] = &dummyHost{out: make(chan []byte, 10), in: make(chan []byte, 10), done: make(chan struct{})}
		c := &dummyCarrier{from: addr, out: wire[i], in: wire[1-i], done: make(chan struct{})}
		var err error
		if ds[i], err = newDataplane(cfg, wrap(hosts[i]), newPort(cfg, c.opener(carrier.Family4))); err != nil {
			t.Fatal(err)
		}
	}
	for i, d := range ds {
		w := dataplane.Wanted{MTU: testMTU, Subnets: []netip.Prefix{subnets[i]}, Peers: []dataplane.Peer{{VTEP: ds[1-i].VTEPs()[0], Subnets: []netip.Prefix{subnets[1-i]}}}}
		if _, err := d.Sync(t.Context(), w); err != nil || !slices.Equal(hosts[i].wanted.Subnets, w.Subnets) {
			t.Fatalf("Sync: %v, the host got %v", err, hosts[i].wanted)
		}
	}
	return hosts, ds
}

// lingeringHost looks after itself for longer than it should.
type lingeringHost struct {
	*dummyHost
	lingers, free chan struct{}
}

func (h lingeringHost) watch(ctx context.Context, _ func() error) error {
	<-ctx.Done()
	h.lingers <- struct{}{}
	<-h.free
	return nil
}

// TestTrafficEndsLast: packets are forwarded for as long as the host needs to end, which may wait for the kernel.
func TestTrafficEndsLast(t *testing.T) {
	lingers, free := make(chan struct{}), make(chan struct{})
	hosts, ds := dummyPair(t, func(h *dummyHost) host { return lingeringHost{h, lingers, free} })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, len(ds))
	for _, d := range ds {
		go func() { ended <- d.Run(ctx, func() {}) }()
	}
	cancel()
	for range ds {
		<-lingers
	}
	ping := udpPacket(podA, podB, 1, 2, []byte("ping"))
	hosts[0].out <- ping
	select {
	case got := <-hosts[1].in:
		if !bytes.Equal(got, ping) {
			t.Errorf("got %x, want %x", got, ping)
		}
	case <-time.After(5 * time.Second):
		t.Error("nothing is forwarded while the host ends")
	}
	close(free)
	for range ds {
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

// runUntilEnd runs d until the test ends.
func runUntilEnd(t *testing.T, d *Dataplane) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx, func() {}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}
