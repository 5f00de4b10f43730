package probe

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/status"
)

// forge makes answers to the last requests of each kind that are wrong in one respect.
var forge = map[string]func(a *answer){
	"cookie":       func(a *answer) { a.data = []byte("12345678") },
	"short cookie": func(a *answer) { a.data = a.data[:7]; a.sum++ },
	"no cookie":    func(a *answer) { a.data = nil; a.sum++ },
	"source":       func(a *answer) { a.from = netip.MustParseAddr("203.0.113.9") },
	"no source":    func(a *answer) { a.from = netip.Addr{} },
	"sequence":     func(a *answer) { a.seq += 1024 },
	"size":         func(a *answer) { a.size-- },
	"destination":  func(a *answer) { a.to = netip.MustParseAddr("203.0.113.9") },
}

// TestForgedAnswers: an answer that is wrong in anything changes nothing and is counted.
func TestForgedAnswers(t *testing.T) {
	for name, change := range forge {
		t.Run(name, func(t *testing.T) {
			run(t, 2, func(w *world) {
				for i := range 2 {
					w.host(i, func(h *fakeHost) { h.noOverlay, h.noUnder = true, true })
				}
				forged := uint64(0)
				for range 100 {
					time.Sleep(100 * time.Millisecond)
					for _, r := range w.requests() {
						h := w.hosts[r.to]
						a, _ := (&fakeHost{subnet: h.subnet, vtep: h.vtep}).answer(&r.request)
						a.seq, a.data, a.sum = r.seq, r.cookie[:], 1
						if a.outcome == reply && name == "destination" || a.outcome != reply && name == "size" {
							continue
						}
						change(&a)
						forged++
						w.prober.take(&a)
					}
				}
				s := w.prober.Status()
				if s.Counts.Answered > 0 || s.Counts.Forged != forged || forged < 100 || !w.is(status.ProbeUnknown, status.ReasonNeverAnswered)() {
					t.Errorf("%d forged: %+v", forged, s)
				}
			})
		})
	}
}

// TestErrorsOfStrangers: errors that quote a request are believed only from who can know.
func TestErrorsOfStrangers(t *testing.T) {
	stranger, router := netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("192.0.2.1")
	q := newPeer(netip.MustParsePrefix("10.1.0.0/24"), netip.MustParseAddr("172.16.0.1"), true, 0, 0)
	for _, c := range []struct {
		kind    kind
		outcome outcome
		from    netip.Addr
		ok      bool
	}{
		{hop, expired, q.subnet.Addr(), true},
		{hop, expired, q.vtep, true},
		{hop, expired, netip.MustParseAddr("10.1.0.1"), true},
		{hop, expired, router, false}, // the packet did not take the tunnel
		{echo, expired, q.subnet.Addr(), false},
		{under, expired, router, false},
		{under, unreachable, router, true},
		{echo, unreachable, router, false},
		{full, unreachable, stranger, false},
		{hop, unreachable, q.subnet.Addr(), true},
		{hop, unreachable, router, false},
		{full, tooBig, router, true},
		{echo, tooBig, router, false},
		{under, tooBig, router, false},
	} {
		f := flight{peer: q, kind: c.kind, to: q.target(c.kind), seq: 7, cookie: cookie{1}, sum: 9}
		a := answer{outcome: c.outcome, from: c.from, to: f.to, seq: 7, sum: 1, data: f.cookie[:]}
		short := a
		short.data, short.sum = nil, 9 // RFC 792 asks for the header only
		if f.matches(&a) != c.ok || f.matches(&short) != c.ok {
			t.Errorf("%v: matches %v, and %v if little is quoted", c, f.matches(&a), f.matches(&short))
		}
	}
}

// TestDoubledAnswer: the second copy of an answer is not a forgery, and changes nothing.
func TestDoubledAnswer(t *testing.T) {
	run(t, 1, func(w *world) {
		w.await("ok", 5*time.Second, w.is(status.ProbeOK, ""))
		time.Sleep(time.Second)
		before := w.prober.Status()
		for _, r := range w.requests() {
			a := answer{outcome: reply, from: r.to, seq: r.seq, size: r.size - headers(r.to) + icmpHeader, data: r.cookie[:]}
			if r.ttl == 0 {
				w.prober.take(&a)
			}
		}
		if s := w.prober.Status(); s.Counts.Answered != before.Counts.Answered || s.Counts.Forged > 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestFlood: of more answers than there can be, most are left to the kernel to drop.
func TestFlood(t *testing.T) {
	run(t, 1, func(w *world) {
		w.await("ok", 5*time.Second, w.is(status.ProbeOK, ""))
		w.mu.Lock()
		s := w.sockets[0]
		w.mu.Unlock()
		stop := time.Now().Add(10 * time.Second)
		n := 0
		for ; time.Now().Before(stop); n++ {
			s.put(answer{outcome: reply, from: netip.MustParseAddr("10.1.0.0"), data: make([]byte, 8)})
		}
		if n > 2*perWindow*int(10*time.Second/window) {
			t.Errorf("%d answers were taken in 10 s", n)
		}
	})
}

// FuzzAnswers: whatever comes in, nobody who has not seen the cookies changes the state of a peer.
func FuzzAnswers(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) {
		run(t, 4, func(w *world) {
			r := rand.New(rand.NewPCG(seed, 1))
			for i := range 4 {
				w.host(i, func(h *fakeHost) { h.noOverlay, h.noUnder = true, true })
			}
			for range 300 {
				all := w.requests()
				if time.Sleep(50 * time.Millisecond); len(all) == 0 {
					continue
				}
				of := all[r.IntN(len(all))]
				data := make([]byte, r.IntN(9))
				for i := range data {
					data[i] = byte(r.Uint32())
				}
				from := of.to
				if r.IntN(2) == 0 {
					from = w.hosts[of.to].subnet.Addr()
				}
				w.prober.take(&answer{outcome: outcome(r.IntN(6)), from: from, to: of.to, seq: of.seq + uint16(r.IntN(3)), sum: uint16(r.IntN(65536) | 2),
					size: of.size - headers(of.to) + icmpHeader, mtu: r.IntN(65536), data: data})
			}
			if s := w.prober.Status(); s.Counts.Answered > 0 {
				t.Fatalf("%+v", s)
			}
		})
	})
}

// FuzzMessages: any message, with any control data, is read without harm, and what is read lies in it.
func FuzzMessages(f *testing.F) {
	echoed := []byte{0, 0, 1, 2, 0, 9, 0, 7, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9}
	f.Add(append([]byte{0x45, 19: 0}, echoed...), []byte{}, false, false)
	f.Add(echoed, make([]byte, unix.CmsgSpace(32)), true, true)
	f.Add([]byte{0xff}, []byte{1, 2, 3}, false, false)
	f.Fuzz(func(t *testing.T, b, oob []byte, v6, plain bool) {
		s := &socket{v6: v6, plain: plain, id: 9}
		for _, a := range []answer{s.readReply(b, netip.Addr{}), s.readError(b, oob, netip.Addr{})} {
			if len(a.data) > len(cookie{}) || a.outcome > tooBig || a.mtu < 0 || a.mtu > 65535 || a.size < 0 || a.outcome != junk && len(b) < icmpHeader {
				t.Fatalf("%+v of %x", a, b)
			}
		}
	})
}
