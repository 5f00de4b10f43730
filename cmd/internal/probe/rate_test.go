package probe

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/overlayd/overlayd/cmd/internal/status"
)

// TestRate: with any number of peers, no second has more requests than the rate, each peer has its turn, and they are spread.
func TestRate(t *testing.T) {
	for _, c := range []struct {
		peers int
		turn  time.Duration // at most between two echoes
	}{{1, interval}, {50, interval}, {101, interval}, {1500, 13 * time.Second}, {4000, 30 * time.Second}} {
		t.Run(fmt.Sprint(c.peers), func(t *testing.T) {
			run(t, c.peers, func(w *world) {
				w.await("all ok", 2*c.turn, w.is(status.ProbeOK, ""))
				settle := max(time.Minute, 2*c.turn)
				time.Sleep(settle)
				from := time.Now()
				time.Sleep(settle)
				checkTurns(w.t, w, c.peers, c.turn, from)
				if round := time.Duration(w.prober.Status().RoundMS) * time.Millisecond; round > c.turn || round < interval/2 {
					t.Errorf("the round is %s", round)
				}
				if s := w.prober.Status(); s.Counts.Lost > 0 || s.Counts.Forged > 0 || s.Counts.Unsent > 0 || s.Counts.Answered+10 < s.Counts.Sent {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// TestLimitedAnswers: a host that answers a used-up TTL once a second, as Linux does, forwards for all that, also if some of its
// answers are late and it is asked again.
func TestLimitedAnswers(t *testing.T) {
	quick := func(w *world) {
		w.prober.rules = rules{interval: 500 * time.Millisecond, patience: 500 * time.Millisecond}
		w.host(0, func(h *fakeHost) { h.limit = rate.NewLimiter(1, 6) })
	}
	run(t, 1, func(w *world) {
		w.await("ok", 5*time.Second, w.is(status.ProbeOK, ""))
		for range 100 {
			w.host(0, func(h *fakeHost) { h.noForwarding = true })
			time.Sleep(2 * time.Second)
			w.host(0, func(h *fakeHost) { h.noForwarding = false })
			time.Sleep(3 * time.Second)
			if p := w.probe(0); p.State != status.ProbeOK {
				t.Fatalf("%+v\n%s", p, w.log.String())
			}
		}
		if text := w.log.String(); strings.Contains(text, "WARN") {
			t.Error(text)
		}
	}, quick)
}

// checkTurns looks at what was sent since a time.
func checkTurns(t *testing.T, w *world, peers int, turn time.Duration, from time.Time) {
	t.Helper()
	var seconds, tenths [1000]int
	last := map[netip.Addr]time.Time{}
	echoes, all := 0, 0
	for _, r := range w.requests() {
		since := r.at.Sub(from)
		if since < 0 {
			continue
		}
		all++
		seconds[since/time.Second]++
		tenths[since/(100*time.Millisecond)]++
		if r.size != smallSize(r.to) || r.ttl != 0 || r.to == w.hosts[r.to].vtep {
			continue
		}
		echoes++
		const slack = burst * time.Second / perSecond // requests are sent in batches
		if was, ok := last[r.to]; ok && (r.at.Sub(was) > turn+slack || r.at.Sub(was) < interval*4/5-slack) {
			t.Fatalf("two echoes to %s are %s apart", r.to, r.at.Sub(was))
		}
		last[r.to] = r.at
	}
	if len(last) != peers {
		t.Errorf("%d of %d peers were asked", len(last), peers)
	}
	for i, n := range seconds {
		if n > perSecond+burst {
			t.Errorf("%d requests in second %d", n, i)
		}
	}
	busiest := 0
	for _, n := range tenths {
		busiest = max(busiest, n)
	}
	if peers >= 1500 && busiest > perSecond/10+2*burst {
		t.Errorf("%d requests in 100 ms: they are not spread", busiest)
	}
	if peers > fewPeers && (all-echoes)*3 > all {
		t.Errorf("%d of %d requests are no echoes", all-echoes, all)
	}
}

// TestExtra: few peers are asked for their MTU and forwarding with each echo, more once a minute.
func TestExtra(t *testing.T) {
	for peers, period := range map[int]time.Duration{10: interval, 200: time.Minute} {
		run(t, peers, func(w *world) {
			const turns = 10
			time.Sleep(time.Minute)
			from := time.Now()
			time.Sleep(turns * period)
			n := map[string]int{}
			for _, r := range w.requests() {
				if r.at.After(from) {
					n[fmt.Sprint(r.size == 1450, " ", r.ttl)]++
				}
			}
			for _, k := range []string{"true 0", "false 1"} {
				if got := n[k] / peers; got < turns-1 || got > turns*5/4+1 {
					t.Errorf("%d peers: %d of %s each in %s, want about %d", peers, got, k, turns*period, turns)
				}
			}
		})
	}
}

// TestManyFail: if all of many peers fall silent at once, the rate holds, all of them are named, and the log stays short.
func TestManyFail(t *testing.T) {
	const peers = 2000
	run(t, peers, func(w *world) {
		w.await("all ok", 2*interval, w.is(status.ProbeOK, ""))
		for i := range peers {
			w.host(i, func(h *fakeHost) { h.noOverlay = true })
		}
		from := time.Now()
		took := w.await("all blocked", 2*time.Minute, w.is(status.ProbeDown, status.ReasonTunnelBlocked))
		t.Logf("all are named after %s", took)
		per := map[int64]int{}
		for _, r := range w.requests() {
			if r.at.After(from) {
				per[int64(r.at.Sub(from)/time.Second)]++
			}
		}
		for second, n := range per {
			if n > perSecond+burst {
				t.Errorf("%d requests in second %d", n, second)
			}
		}
		time.Sleep(2 * time.Second)
		if n := w.log.Count("reason=tunnel_blocked"); n < newsPerSecond || n > int(took/time.Second+2)*newsPerSecond {
			t.Errorf("%d lines", n)
		}
	})
}
