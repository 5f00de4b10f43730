package probe

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// world is a Prober on a network of hosts that exist in memory only, in the time of a synctest bubble.
type world struct {
	t      *testing.T
	prober *Prober
	log    netnstest.Log
	status atomic.Pointer[controller.Status]

	mu      sync.Mutex
	hosts   map[netip.Addr]*fakeHost // by each address
	sent    []sentAt
	refuse  error // of whoever opens a socket
	unsent  error // of whoever sends
	sockets []*fakeSocket
}

type sentAt struct {
	request
	at time.Time
}

// fakeHost is a peer. Each field that is set takes something from it.
type fakeHost struct {
	subnet       netip.Prefix
	vtep         netip.Addr
	noOverlay    bool // nothing arrives through the overlay
	noUnder      bool // nothing arrives at the underlay address
	noEcho       bool // it answers no echo
	noForwarding bool
	unreachable  bool          // a router says that it is not there
	owns         bool          // the address behind it is its own
	pathMTU      int           // larger packets are lost; 0: none are
	saysMTU      bool          // and a router says so
	limit        *rate.Limiter // of the answers that the TTL is used up; nil: none
	rtt          time.Duration
}

// fakeSocket is the transport of one family.
type fakeSocket struct {
	world   *world
	v6      bool
	answers chan answer
	closed  chan struct{}
	once    sync.Once
}

func (s *fakeSocket) send(r *request) (uint16, error) {
	w := s.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unsent != nil {
		return 0, w.unsent
	}
	if r.to.Is6() != s.v6 {
		return 0, errors.New("wrong family")
	}
	w.sent = append(w.sent, sentAt{*r, time.Now()})
	h := w.hosts[r.to]
	if h == nil {
		return 1, nil
	}
	if a, ok := h.answer(r); ok {
		a.data = bytes.Clone(r.cookie[:])
		a.seq, a.sum = r.seq, 1
		time.AfterFunc(h.rtt, func() { s.put(a) })
	}
	return 1, nil
}

func (s *fakeSocket) put(a answer) {
	select {
	case s.answers <- a:
	case <-s.closed:
	}
}

// answer is what a host, or the network before it, answers.
func (h *fakeHost) answer(r *request) (answer, bool) {
	size := r.size - headers(r.to) + icmpHeader
	overlay := r.to != h.vtep
	switch {
	case h.unreachable && !overlay:
		return answer{outcome: unreachable, from: netip.MustParseAddr("192.0.2.1"), to: r.to}, true
	case overlay && (h.noOverlay || h.unreachable), !overlay && h.noUnder:
		return answer{}, false
	case h.pathMTU > 0 && r.size > h.pathMTU:
		return answer{outcome: tooBig, from: netip.MustParseAddr("198.51.100.1"), to: r.to, mtu: h.pathMTU}, h.saysMTU
	case r.ttl == 1 && !h.owns:
		return answer{outcome: expired, from: h.subnet.Addr(), to: r.to}, !h.noForwarding && (h.limit == nil || h.limit.Allow())
	}
	return answer{outcome: reply, from: r.to, size: size}, !h.noEcho
}

func (s *fakeSocket) receive() (answer, error) {
	select {
	case a := <-s.answers:
		return a, nil
	case <-s.closed:
		return answer{}, errors.New("closed")
	}
}

func (s *fakeSocket) close() { s.once.Do(func() { close(s.closed) }) }

func (w *world) open(v6 bool) (transport, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse != nil {
		return nil, w.refuse
	}
	s := &fakeSocket{world: w, v6: v6, answers: make(chan answer, 100), closed: make(chan struct{})}
	w.sockets = append(w.sockets, s)
	return s, nil
}

const interval = 10 * time.Second

// run runs f beside a Prober that has n peers, after others have prepared the world.
func run(t *testing.T, n int, f func(w *world), prepare ...func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, hosts: map[netip.Addr]*fakeHost{}}
		s := &controller.Status{Held: true, MTU: 1450, Lease: control.Lease{Subnet: netip.MustParsePrefix("10.0.0.0/24"), IPv6Subnet: netip.MustParsePrefix("fd00::/64")}}
		for i := range n {
			s.Peers = append(s.Peers, w.add(i))
		}
		w.status.Store(s)
		w.prober = New(Config{Log: slog.New(slog.NewTextHandler(&w.log, nil)), Interval: interval, Limit: NewLimit(), Status: w.status.Load,
			Local: []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}, Tunnel: true, Port: 8472})
		w.prober.open = w.open
		for _, f := range prepare {
			f(w)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var ended sync.WaitGroup
		ended.Go(func() { w.prober.Run(ctx) })
		defer ended.Wait()
		defer cancel()
		f(w)
	})
}

// add makes the i-th peer: odd ones have IPv6 subnets.
func (w *world) add(i int) controller.PeerStatus {
	subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i>>8) + 1, byte(i), 0}), 24)
	vtep := netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})
	if i%2 == 1 {
		subnet = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 4: 1, 5: byte(i >> 8), 6: byte(i), 7: 0}), 64)
		vtep = netip.AddrFrom16([16]byte{0x20, 0x01, 14: byte(i >> 8), 15: byte(i)})
	}
	h := &fakeHost{subnet: subnet, vtep: vtep, rtt: time.Millisecond}
	w.hosts[vtep], w.hosts[subnet.Addr()], w.hosts[behind(subnet)] = h, h, h
	return controller.PeerStatus{Subnet: subnet, VTEP: vtep, State: controller.PeerUp}
}

// host changes the i-th peer.
func (w *world) host(i int, change func(h *fakeHost)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(w.hosts[w.status.Load().Peers[i].VTEP])
}

// probe returns what is known of the i-th peer.
func (w *world) probe(i int) status.Probe {
	w.t.Helper()
	all := w.prober.Status().Peers
	if i >= len(all) {
		w.t.Fatalf("%d peers are probed", len(all))
	}
	return all[i]
}

// await waits until ok, for some time at most, and returns for how long.
func (w *world) await(what string, atMost time.Duration, ok func() bool) time.Duration {
	w.t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > atMost {
			w.t.Fatalf("not %s after %s: %+v\n%s", what, atMost, w.prober.Status(), w.log.String())
		}
		time.Sleep(10*time.Millisecond + time.Duration(len(w.hosts)/300)*100*time.Millisecond)
	}
	return time.Since(began)
}

// is reports whether all peers are in that state for that reason.
func (w *world) is(state status.ProbeState, reason string) func() bool {
	return func() bool {
		all := w.prober.Status().Peers
		return len(all) > 0 && !slices.ContainsFunc(all, func(p status.Probe) bool { return p.State != state || p.Reason != reason })
	}
}

// requests returns what was sent so far.
func (w *world) requests() []sentAt {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.sent)
}
