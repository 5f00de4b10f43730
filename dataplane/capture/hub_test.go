package capture

import (
	"errors"
	"net/netip"
	"sync"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
)

var (
	peerA = netip.MustParseAddr("192.0.2.1")
	peerB = netip.MustParseAddr("192.0.2.2")
)

// show shows a packet at p, as a worker does.
func show(p *Point, m Meta, text string) {
	if t := p.Tap(); t != nil {
		t.Show(m, []byte(text))
	}
}

// texts returns the packets that c has.
func texts(t *testing.T, c *Capture) (out []string) {
	t.Helper()
	b := c.Append(nil, 1<<20)
	for len(b) > 0 {
		var p Packet
		n := frameLen(packetHeader + int(b[24]))
		if err := p.parse(b[:n]); err != nil {
			t.Fatal(err)
		}
		out = append(out, string(p.Data))
		b = b[n:]
	}
	return out
}

func start(t *testing.T, h *Hub, f Filter) *Capture {
	t.Helper()
	c, err := h.Start(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func check(t *testing.T, c *Capture, want ...string) {
	t.Helper()
	got := texts(t, c)
	if len(got) != len(want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

func TestNobodyListensWithoutCapture(t *testing.T) {
	var h Hub
	var p Point
	leave := h.Join(1, &p)
	if p.Tap() != nil {
		t.Error("a Tap before there is a capture")
	}
	c := start(t, &h, Filter{})
	if p.Tap() == nil {
		t.Error("no Tap while there is a capture")
	}
	c.Close()
	c.Close()
	if p.Tap() != nil {
		t.Error("a Tap after the capture")
	}
	leave()
	leave()
	if len(h.members) != 0 || len(h.captures) != 0 {
		t.Errorf("left: %d Points, %d captures", len(h.members), len(h.captures))
	}
	(*Hub)(nil).Join(1, &p)()
}

func TestCaptureSeesWhatItWants(t *testing.T) {
	var h Hub
	var p Point
	h.Join(1, &p)
	all, drops, ofA, few := start(t, &h, Filter{}), start(t, &h, Filter{Drops: true}), start(t, &h, Filter{Peers: []netip.Addr{peerA}}), start(t, &h, Filter{Snap: 15})
	show(&p, Meta{Verdict: Sent, Peer: peerA, Form: Datagram}, "one to A: with a long text")
	show(&p, Meta{Verdict: Received, Peer: peerB, Form: Arrival}, "two from B: with a long text")
	show(&p, Meta{Verdict: Dropped(dataplane.DropNoRoute)}, "three")
	show(&p, Meta{Verdict: Dropped(dataplane.DropTooBig), Peer: peerA}, "4")
	check(t, all, "one to A: with a long text", "two from B: with a long text", "three", "4")
	check(t, drops, "three", "4")
	check(t, ofA, "one to A: with a long text", "4")
	check(t, few, "one to A: with a long t", "two from B: with a long", "t", "4")
}

// TestOldestFirst has packets of two workers, the second of which shows first.
func TestOldestFirst(t *testing.T) {
	var h Hub
	var one, two Point
	h.Join(1, &one)
	c := start(t, &h, Filter{})
	h.Join(2, &two) // while the capture runs
	show(&two, Meta{}, "a")
	show(&one, Meta{}, "b")
	show(&one, Meta{}, "c")
	show(&two, Meta{}, "d")
	check(t, c, "a", "b", "c", "d")
}

// TestWorkersGo: what they have shown is not lost with them.
func TestWorkersGo(t *testing.T) {
	var h Hub
	var p Point
	leave := h.Join(1, &p)
	c := start(t, &h, Filter{})
	show(&p, Meta{}, "last")
	for c.Lost() == 0 {
		p.Tap().sinks[0].put(&Meta{}, 1, 1, 0, nil)
	}
	lost := c.Lost()
	leave()
	show(&p, Meta{}, "too late")
	for n := 0; ; n++ {
		b := c.Append(nil, 1<<16)
		if len(b) == 0 {
			break
		}
		if n > maxRing {
			t.Fatal("it has no end")
		}
	}
	if len(c.current()) != 0 || lost == 0 || c.Lost() != lost {
		t.Errorf("%d rings left, %d lost, then %d", len(c.rings), lost, c.Lost())
	}
	h.Join(1, &p)
	show(&p, Meta{}, "of the next session")
	check(t, c, "of the next session")
}

func TestCapturesAreBounded(t *testing.T) {
	var h Hub
	for range maxCaptures {
		start(t, &h, Filter{})
	}
	if _, err := h.Start(Filter{}); !errors.Is(err, ErrBusy) {
		t.Errorf("one more: %v", err)
	}
	for _, n := range []int{0, 1, 2, 8, 40, 1000} {
		if size := ringSize(n); size&(size-1) != 0 || size < 2*MaxFrame || size > maxRing {
			t.Errorf("rings of %d workers have %d bytes", n, size)
		}
	}
}

func TestHubEnds(t *testing.T) {
	var h Hub
	var p Point
	h.Join(1, &p)
	c, d := start(t, &h, Filter{}), start(t, &h, Filter{})
	show(&p, Meta{}, "last")
	h.Close()
	<-c.Done()
	<-d.Done()
	show(&p, Meta{}, "too late")
	check(t, c, "last")
	if _, err := h.Start(Filter{}); !errors.Is(err, ErrEnded) {
		t.Errorf("after the end: %v", err)
	}
}

// TestComeAndGo is for the race detector: workers show packets while captures and workers come and go.
func TestComeAndGo(t *testing.T) {
	var h Hub
	var points [4]Point
	stop := make(chan struct{})
	var workers, others sync.WaitGroup
	for i := range points {
		workers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
					show(&points[i], Meta{Verdict: Verdict(n % 5), Peer: peerA}, "packet")
				}
			}
		})
	}
	others.Go(func() {
		for range 50 {
			h.Join(1, &points[0], &points[1])()
		}
	})
	h.Join(2, &points[2], &points[3])
	for i := range 3 {
		others.Go(func() {
			for range 10 {
				c, err := h.Start(Filter{Drops: i == 1})
				if err != nil {
					t.Error(err)
					return
				}
				c.Append(nil, 1000)
				c.Lost()
				c.Close()
			}
		})
	}
	others.Wait()
	close(stop)
	workers.Wait()
}

func TestShowAllocatesNothing(t *testing.T) {
	var h Hub
	var p Point
	h.Join(1, &p)
	start(t, &h, Filter{})
	start(t, &h, Filter{Peers: []netip.Addr{peerB, peerA}})
	packet, head := make([]byte, 1400), make([]byte, 50)
	for _, what := range []string{"with room", "full"} {
		if n := testing.AllocsPerRun(2000, func() { p.Tap().Show(Meta{Peer: peerA}, head, packet) }); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
		for h.captures[0].Lost() == 0 {
			p.Tap().Show(Meta{Peer: peerA}, packet)
		}
	}
}

func TestVerdicts(t *testing.T) {
	names := Verdicts()
	if len(names) != 2+dataplane.NumDrops || names[0] != "tx" || names[1] != "rx" || names[Dropped(dataplane.DropBadSource)] != "drop:bad_source" {
		t.Errorf("got %q", names)
	}
	for v, name := range names {
		if Verdict(v).String() != name || Verdict(v).IsDrop() != (v > 1) {
			t.Errorf("verdict %d is %q", v, name)
		}
	}
}
