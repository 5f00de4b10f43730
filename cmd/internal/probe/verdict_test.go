package probe

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/status"
)

// faults are what can happen to peers, each with what is to be said of it.
var faults = map[string]struct {
	hit    func(h *fakeHost)
	state  status.ProbeState
	reason string
	says   string // in the text or the fix, for people
}{
	"host down":                   {func(h *fakeHost) { h.noOverlay, h.noUnder = true, true }, status.ProbeDown, status.ReasonHostDown, "start that host"},
	"a router finds no host":      {func(h *fakeHost) { h.unreachable = true }, status.ProbeDown, status.ReasonHostDown, "no host at"},
	"tunnel blocked":              {func(h *fakeHost) { h.noOverlay = true }, status.ProbeDown, status.ReasonTunnelBlocked, "UDP port 8472"},
	"path MTU":                    {func(h *fakeHost) { h.pathMTU = 1400 }, status.ProbeDegraded, status.ReasonPathMTU, "packets of 1450 bytes do not arrive"},
	"path MTU that a router says": {func(h *fakeHost) { h.pathMTU, h.saysMTU = 1400, true }, status.ProbeDegraded, status.ReasonPathMTU, "the path takes 1400"},
	"no forwarding":               {func(h *fakeHost) { h.noForwarding = true }, status.ProbeDegraded, status.ReasonNoForwarding, "forward"},
	"echo filtered":               {func(h *fakeHost) { h.noEcho = true }, status.ProbeOK, "", ""},
}

// TestFaults: each fault is named within 15 seconds at the usual interval, not before the third loss, with one line in the log
// for each peer, and forgotten soon after it has gone, with one more.
func TestFaults(t *testing.T) {
	for name, c := range faults {
		t.Run(name, func(t *testing.T) {
			run(t, 2, func(w *world) {
				w.await("ok", 5*time.Second, w.is(status.ProbeOK, ""))
				time.Sleep(time.Minute)
				for i := range 2 {
					w.host(i, c.hit)
				}
				took := w.await(c.reason, 15*time.Second, w.is(c.state, c.reason))
				if c.reason == "" {
					time.Sleep(time.Minute)
					took = w.await("still ok", 0, w.is(c.state, c.reason)) + time.Hour
				}
				if took < 2*time.Second {
					t.Errorf("named after %s, before it was lost three times", took)
				}
				for i := range 2 {
					if p := w.probe(i); !strings.Contains(p.Err+p.Fix, c.says) || (p.Err == "") != (c.reason == "") || (p.Fix == "") != (c.reason == "") {
						t.Errorf("says %q, %q", p.Err, p.Fix)
					}
				}
				for i := range 2 {
					w.host(i, func(h *fakeHost) { *h = fakeHost{subnet: h.subnet, vtep: h.vtep, rtt: h.rtt} })
				}
				w.await("ok again", 25*time.Second, w.is(status.ProbeOK, ""))
				time.Sleep(2 * time.Second)
				lines := 2
				if c.reason == "" {
					lines = 0
				}
				if bad, good := w.log.Count("reason="+c.reason+" "), w.log.Count("can be reached again"); bad != lines || good != lines {
					t.Errorf("%d and %d lines, want %d:\n%s", bad, good, lines, w.log.String())
				}
			})
		})
	}
}

// TestFaultsAtTheStart: of a host that has never answered it is only said that it is down if somebody knows.
func TestFaultsAtTheStart(t *testing.T) {
	for name, c := range map[string]struct {
		hit    func(h *fakeHost)
		state  status.ProbeState
		reason string
	}{
		"host down or ICMP filtered": {func(h *fakeHost) { h.noOverlay, h.noUnder = true, true }, status.ProbeUnknown, status.ReasonNeverAnswered},
		"a router finds no host":     {func(h *fakeHost) { h.unreachable = true }, status.ProbeDown, status.ReasonHostDown},
		"tunnel blocked":             {func(h *fakeHost) { h.noOverlay = true }, status.ProbeDown, status.ReasonTunnelBlocked},
		"path MTU":                   {func(h *fakeHost) { h.pathMTU = 1400 }, status.ProbeDegraded, status.ReasonPathMTU},
		"no answer to TTL 1":         {func(h *fakeHost) { h.noForwarding = true }, status.ProbeOK, ""},
		"echo filtered":              {func(h *fakeHost) { h.noEcho = true }, status.ProbeOK, ""},
		"underlay echo filtered":     {func(h *fakeHost) { h.noUnder = true }, status.ProbeOK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 1, func(w *world) {
				w.host(0, c.hit)
				w.await(c.reason, 10*time.Second, w.is(c.state, c.reason))
				time.Sleep(2 * time.Minute)
				w.await("still "+c.reason, 0, w.is(c.state, c.reason))
				if p := w.probe(0); c.state == status.ProbeOK && (p.RTTMicros < 1000 || p.Last.IsZero()) || p.Forwards == status.ForwardsNo {
					t.Errorf("%+v", p)
				}
				if n := w.log.Count("level="); n > 0 != (c.state == status.ProbeDown || c.state == status.ProbeDegraded) || n > 1 {
					t.Errorf("%d lines: %s", n, w.log.String())
				}
			})
		})
	}
}

// TestUnderlayNeverAnswers: with ICMP to the underlay address filtered, which is usual, a peer that answers no more is down, but not why.
func TestUnderlayNeverAnswers(t *testing.T) {
	run(t, 1, func(w *world) {
		w.host(0, func(h *fakeHost) { h.noUnder = true })
		w.await("ok", 5*time.Second, w.is(status.ProbeOK, ""))
		w.host(0, func(h *fakeHost) { h.noOverlay = true })
		w.await("down", 15*time.Second, w.is(status.ProbeDown, status.ReasonNoAnswer))
		w.host(0, func(h *fakeHost) { h.noUnder = false })
		w.await("its host answers", 15*time.Second, w.is(status.ProbeDown, status.ReasonTunnelBlocked))
		w.host(0, func(h *fakeHost) { h.noUnder = true })
		w.await("the host goes down too", 35*time.Second, w.is(status.ProbeDown, status.ReasonHostDown))
	})
}

// TestCannotAsk: what is wrong with this host says nothing of its peers.
func TestCannotAsk(t *testing.T) {
	run(t, 2, func(w *world) {
		w.await("ok", 5*time.Second, w.is(status.ProbeOK, ""))
		w.mu.Lock()
		w.unsent = errors.New("operation not permitted")
		w.mu.Unlock()
		w.await("not sent", 15*time.Second, w.is(status.ProbeUnknown, status.ReasonNotSent))
		if p, s := w.probe(0), w.prober.Status(); !strings.Contains(p.Err, "operation not permitted") || p.Fix == "" || s.Counts.Unsent < 6 || s.Counts.Lost > 0 {
			t.Errorf("%+v, %+v", p, s)
		}
		w.mu.Lock()
		w.unsent = nil
		w.mu.Unlock()
		w.await("ok again", 15*time.Second, w.is(status.ProbeOK, ""))
	})
}

// TestRoutesRefuse: if this host's own routes and rules refuse what is for a peer, pods do not reach it either.
func TestRoutesRefuse(t *testing.T) {
	for name, err := range map[string]error{"no route": unix.ENETUNREACH, "unreachable": unix.EHOSTUNREACH, "prohibited": unix.EACCES, "blackhole": unix.EINVAL} {
		t.Run(name, func(t *testing.T) {
			run(t, 2, func(w *world) {
				w.await("ok", 5*time.Second, w.is(status.ProbeOK, ""))
				w.mu.Lock()
				w.unsent = fmt.Errorf("send: %w", err)
				w.mu.Unlock()
				w.await("down", 15*time.Second, w.is(status.ProbeDown, status.ReasonNotSent))
				p := w.probe(0)
				if to := p.Subnet.Addr().String(); !strings.Contains(p.Err, err.Error()) || !strings.Contains(p.Fix, "ip route get "+to) {
					t.Errorf("%+v", p)
				}
				w.mu.Lock()
				w.unsent = nil
				w.mu.Unlock()
				w.await("ok again", 15*time.Second, w.is(status.ProbeOK, ""))
			})
		})
	}
}

// TestNoSocket: without a socket nothing is known, which is said once, and it is tried again.
func TestNoSocket(t *testing.T) {
	run(t, 3, func(w *world) {
		w.await("no socket", 10*time.Second, w.is(status.ProbeUnknown, status.ReasonNoSocket))
		time.Sleep(time.Minute)
		s := w.prober.Status()
		if !strings.Contains(s.Err, "no ICMP socket") || !strings.Contains(s.Fix, "CAP_NET_RAW") || s.Counts.Sent > 0 {
			t.Errorf("%+v", s)
		}
		if n := w.log.Count("level="); n != 1 || w.log.Count("CAP_NET_RAW") != 1 {
			t.Errorf("%d lines: %s", n, w.log.String())
		}
		w.mu.Lock()
		w.refuse = nil
		w.mu.Unlock()
		w.await("ok", time.Minute, w.is(status.ProbeOK, ""))
		if s := w.prober.Status(); s.Err != "" {
			t.Errorf("still %s", s.Err)
		}
	}, func(w *world) { w.refuse = ErrNoSocket })
}

// TestSocketDies: a socket that receives nothing any more is replaced, and no peer is blamed.
func TestSocketDies(t *testing.T) {
	run(t, 2, func(w *world) {
		w.await("ok", 5*time.Second, w.is(status.ProbeOK, ""))
		w.mu.Lock()
		dead := w.sockets
		w.mu.Unlock()
		for _, s := range dead {
			s.close()
		}
		time.Sleep(time.Minute)
		w.await("still ok", 0, w.is(status.ProbeOK, ""))
		if n := w.prober.Status().Counts.Changes; n != 2 {
			t.Errorf("%d changes", n)
		}
	})
}

// TestSlowPeer: answers that are late count: nothing is said of a peer behind a long delay, and its round trip is known.
func TestSlowPeer(t *testing.T) {
	for _, rtt := range []time.Duration{900 * time.Millisecond, 1100 * time.Millisecond, 2500 * time.Millisecond} {
		run(t, 2, func(w *world) {
			for i := range 2 {
				w.host(i, func(h *fakeHost) { h.rtt = rtt })
			}
			w.await("ok", 10*time.Second, w.is(status.ProbeOK, ""))
			time.Sleep(5 * time.Minute)
			s := w.prober.Status()
			if p := s.Peers[0]; s.Counts.Changes != 2 || p.RTTMicros != rtt.Microseconds() || p.SmoothMicros != rtt.Microseconds() || p.Lost > 3 || p.MTU != status.MTUOK {
				t.Errorf("%s: %+v", rtt, s)
			}
		})
	}
}

// TestLoss: single losses change no state and are counted for a while.
func TestLoss(t *testing.T) {
	run(t, 1, func(w *world) {
		w.await("ok", 5*time.Second, w.is(status.ProbeOK, ""))
		time.Sleep(5 * time.Minute)
		if p := w.probe(0); p.Lost != 0 || p.Tries != lossTries {
			t.Errorf("%+v", p)
		}
		for range 3 {
			lost := w.prober.Status().Counts.Lost
			w.host(0, func(h *fakeHost) { h.noOverlay = true })
			w.await("lost", time.Minute, func() bool { return w.prober.Status().Counts.Lost > lost })
			w.host(0, func(h *fakeHost) { h.noOverlay = false })
			time.Sleep(20 * time.Second)
		}
		if p := w.probe(0); p.Lost < 3 || p.Lost > 6 || w.prober.Status().Counts.Changes != 1 {
			t.Errorf("%+v", p)
		}
		time.Sleep(5 * time.Minute)
		if p := w.probe(0); p.Lost != 0 {
			t.Errorf("after a while: %+v", p)
		}
	})
}
