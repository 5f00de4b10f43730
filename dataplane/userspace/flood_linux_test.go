package userspace

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/encap"
)

// floods are what a host that is not a peer sends to the port of to, and the reason that samples of it are dropped for. The last
// goes to a port that is closed.
func floods(to *testHost) map[string]struct {
	payload []byte
	port    uint16
	why     dataplane.Drop
} {
	mac := to.vteps[0].MAC
	vxlan := func(vni uint32) []byte {
		b := make([]byte, encap.HeaderLen, 400)
		t := encap.NewTemplate(vni, mac, encap.MAC{2, 9})
		t.Put(b, encap.EtherTypeIPv4)
		return append(b, udpPacket(netip.MustParseAddr("10.42.1.2"), to.podAddr(), 1, 2, make([]byte, 300))...)
	}
	garbage := make([]byte, 400)
	for i := range garbage {
		garbage[i] = byte(i*7 + 3)
	}
	return map[string]struct {
		payload []byte
		port    uint16
		why     dataplane.Drop
	}{
		"unknown VTEP": {vxlan(testVNI), testPort, dataplane.DropUnknownVTEP},
		"wrong VNI":    {vxlan(testVNI + 1), testPort, dataplane.DropBadVNI},
		"garbage":      {garbage, testPort, dataplane.DropBadVNI},
		"short":        {garbage[:6], testPort, dataplane.DropBadHeader},
		"closed port":  {vxlan(testVNI), testPort + 1, 0},
	}
}

// flooder sends a payload to an address until it is stopped, as fast as one goroutine can: many at once, by UDP_SEGMENT.
func flooder(tb testing.TB, from *testHost, payload []byte, to netip.AddrPort) (stop func() uint64) {
	tb.Helper()
	var c *net.UDPConn
	from.Must(func() (err error) {
		if c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)); err == nil {
			err = setSegment(c, len(payload))
		}
		return err
	})
	batch := make([]byte, 0, 64<<10)
	for range min(60, 60000/len(payload)) {
		batch = append(batch, payload...)
	}
	var sent atomic.Uint64
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if _, err := c.Write(batch); err == nil || errors.Is(err, unix.ECONNREFUSED) { // the closed port answers
				sent.Add(uint64(len(batch) / len(payload)))
			}
		}
	}()
	return func() uint64 {
		cancel()
		<-done
		c.Close()
		return sent.Load()
	}
}

// TestFloodIsFiltered: a flood is dropped before it is queued, samples of it are counted by their reason, peers are not
// affected, not even one that is new, and when it is over everything is received again.
func TestFloodIsFiltered(t *testing.T) {
	t.Parallel()
	for _, family := range []int{4, 6} {
		for _, kind := range []string{"unknown VTEP", "wrong VNI", "garbage", "short"} {
			t.Run(fmt.Sprintf("IPv%d/%s", family, kind), func(t *testing.T) {
				hosts := newDualHosts(t, 4, family)
				a, b, late, attacker := hosts[0], hosts[1], hosts[2], hosts[3]
				d := connect(b, a, false)
				dl := late.open()
				late.sync(dl, b)
				late.run(dl)
				fl := floods(b)[kind]
				stop := flooder(t, attacker, fl.payload, netip.AddrPortFrom(b.under[0], fl.port))
				shield := d.port.carriers[0].(carrier.Shield)
				eventually(t, "the flood is filtered", func() bool { return shield.Filtered() > 10_000 })
				b.sync(d, a, late)
				echo(t, late.pod, b.pod, b.podAddr())
				echo(t, a.pod, b.pod, b.podAddr())
				stop()
				s := d.Stats()
				if s.Drops[fl.why] == 0 {
					t.Errorf("no sample is counted: %+v", s)
				}
				eventually(t, "nothing is filtered any more", func() bool {
					f := &d.port.flood
					f.mu.Lock()
					f.last = time.Now().Add(-floodEnd)
					f.mu.Unlock()
					d.port.look(time.Now(), false)
					f.mu.Lock()
					defer f.mu.Unlock()
					return !f.up
				})
				one := d.Stats().Drops[fl.why]
				fl.payload[len(fl.payload)-1]++
				attacker.Must(func() error {
					c, err := net.Dial("udp", netip.AddrPortFrom(b.under[0], fl.port).String())
					if err == nil {
						defer c.Close()
						_, err = c.Write(fl.payload)
					}
					return err
				})
				eventually(t, "a single datagram is received and counted", func() bool { return d.Stats().Drops[fl.why] > one })
			})
		}
	}
}

// TestFloodOfNoNetwork: a flood of a VNI that none of several networks on a port has is dropped before it is queued, and both go on.
func TestFloodOfNoNetwork(t *testing.T) {
	t.Parallel()
	hosts := newDualHosts(t, 3, 4)
	attacker := hosts[2]
	var networks [2][2]*testHost
	for _, h := range hosts[:2] {
		h.subnet6 = netip.Prefix{}
		h.share()
	}
	for n := range networks {
		var ds [2]*Dataplane
		for i, h := range hosts[:2] {
			networks[n][i] = h.on(uint32(1 + n))
			ds[i] = networks[n][i].open()
		}
		for i, h := range networks[n] {
			h.sync(ds[i], networks[n][1-i])
			h.run(ds[i])
		}
	}
	port := hosts[1].shared
	payload := make([]byte, encap.HeaderLen, 400)
	stray := encap.NewTemplate(9, encap.MAC{2}, encap.MAC{2, 9})
	stray.Put(payload, encap.EtherTypeIPv4)
	stop := flooder(t, attacker, payload[:cap(payload)], netip.AddrPortFrom(hosts[1].under[0], testPort))
	defer stop()
	eventually(t, "the flood is filtered", func() bool { return port.carriers[0].(carrier.Shield).Filtered() > 10_000 })
	for _, ends := range networks {
		echo(t, ends[0].NS, ends[1].NS, ends[1].subnet.Addr())
	}
	if port.Stats().Drops[dataplane.DropBadVNI] == 0 {
		t.Error("no sample is counted")
	}
}

// TestNetworkThatLeavesIsNoFlood has a network of a port come and go, each time after a stray datagram, while others look for floods.
func TestNetworkThatLeavesIsNoFlood(t *testing.T) {
	w := &portWorker{family: carrier.Family4}
	p := &Port{opened: make(chan struct{}), ended: make(chan struct{}), workers: []*portWorker{w},
		flood: flood{log: slog.New(slog.DiscardHandler), begin: math.MaxUint64 / 2}} // more than come: only a count that goes back is a flood here
	var looks sync.WaitGroup
	defer looks.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	looks.Go(func() {
		for ctx.Err() == nil {
			p.look(time.Now(), false)
		}
	})
	for range 1000 {
		c, s := sinkNet(t, 1, dataplane.VTEP{Addr: netip.MustParseAddr("192.0.2.2")})
		w.attach(1, c.newLane(carrier.Family4, nil, s))
		w.receive(&carrier.Datagram{Buf: vniPacket(c, 1), From: netip.MustParseAddr("192.0.2.99")})
		w.flush()
		p.look(time.Now(), false)
		p.exit(1)
		p.look(time.Now(), false)
	}
	p.flood.mu.Lock()
	defer p.flood.mu.Unlock()
	if p.flood.up || p.flood.seen != 1000 {
		t.Errorf("flood: %t, unwanted datagrams: %d, want 1000", p.flood.up, p.flood.seen)
	}
}

// TestFilterOfFlood: what a filter takes is what the networks of the port want, as far as that fits.
func TestFilterOfFlood(t *testing.T) {
	a, b, c := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::1")
	var many []netip.Addr
	for i := range carrier.MaxFilterSources + 1 {
		many = append(many, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
	}
	for _, tt := range []struct {
		name   string
		wanted map[uint32][]netip.Addr
		want   carrier.Filter // of IPv4
	}{
		{"two networks", map[uint32][]netip.Addr{2: {b, c}, 1: {b, a}}, carrier.Filter{VNIs: []uint32{1, 2}, Sources: []netip.Addr{a, b}}},
		{"no peer", map[uint32][]netip.Addr{1: {}}, carrier.Filter{VNIs: []uint32{1}, Sources: []netip.Addr{}}},
		{"peers of the other family", map[uint32][]netip.Addr{1: {c}}, carrier.Filter{VNIs: []uint32{1}, Sources: []netip.Addr{}}},
		{"any source in one of them", map[uint32][]netip.Addr{1: {a}, 2: nil}, carrier.Filter{VNIs: []uint32{1, 2}}},
		{"too many", map[uint32][]netip.Addr{1: many}, carrier.Filter{VNIs: []uint32{1}}},
	} {
		f := flood{up: true, wanted: tt.wanted}
		if got := f.filter(carrier.Family4); got == nil || !got.Equal(tt.want) {
			t.Errorf("%s: %+v", tt.name, got)
		}
		f.up = false
		if got := f.filter(carrier.Family4); got != nil {
			t.Errorf("%s without a flood: %+v", tt.name, got)
		}
	}
}

// BenchmarkFlood is one TCP stream from pod to pod while a third host floods the port of the receiver, with each kind of flood.
func BenchmarkFlood(b *testing.B) {
	for _, kind := range []string{"none", "closed port", "unknown VTEP", "wrong VNI", "garbage", "short"} {
		b.Run(kind, func(b *testing.B) {
			hosts := newHosts(b, 3, testMTU)
			from, to, attacker := hosts[0], hosts[1], hosts[2]
			connect(to, from, false)
			stop := func() uint64 { return 0 }
			if kind != "none" {
				fl := floods(to)[kind]
				stop = flooder(b, attacker, fl.payload, netip.AddrPortFrom(to.addr, fl.port))
			}
			time.Sleep(300 * time.Millisecond)
			const took = 3 * time.Second
			n := goodput(b, from, to, took)
			b.ReportMetric(float64(n*8)/float64(took.Nanoseconds()), "Gbit/s")
			b.ReportMetric(float64(stop())/took.Seconds()/1e6, "Mpps")
		})
	}
}

// goodput returns how many bytes TCP brings from pod to pod in some time.
func goodput(tb testing.TB, from, to *testHost, took time.Duration) (n int64) {
	tb.Helper()
	var l net.Listener
	to.pod.Must(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(to.podAddr(), 0).String())
		return err
	})
	defer l.Close()
	got := make(chan int64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- 0
			return
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(took))
		n, _ := io.Copy(io.Discard, c)
		got <- n
	}()
	var c net.Conn
	from.pod.Must(func() (err error) { c, err = net.DialTimeout("tcp", l.Addr().String(), 10*time.Second); return err })
	defer c.Close()
	c.SetDeadline(time.Now().Add(took + time.Second))
	go func() {
		b := make([]byte, 128<<10)
		binary.BigEndian.PutUint64(b, 1)
		for {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}()
	return <-got
}
