package probe

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
)

// question is about the i-th peer of a world.
func (w *world) question(i, count int) Question {
	h := w.hosts[w.status.Load().Peers[i].VTEP]
	q := Question{Subnet: h.subnet, VTEP: h.vtep, From: netip.MustParseAddr("10.0.0.0"), Local: netip.MustParseAddr("192.0.2.2"), MTU: 1450, UnderMTU: 1500, Tunnel: true, Port: 8472, Count: count}
	if h.vtep.Is6() {
		q.From, q.Local = netip.MustParseAddr("fd00::"), netip.MustParseAddr("2001:db8::2")
	}
	return q
}

// TestAsk: one peer is asked in all ways, and judged like by a Prober.
func TestAsk(t *testing.T) {
	for name, c := range map[string]struct {
		hit      func(h *fakeHost)
		state    status.ProbeState
		reason   string
		answered [5]bool // small, full and hop through the overlay, small and full to the underlay
	}{
		"healthy":        {func(*fakeHost) {}, status.ProbeOK, "", [5]bool{true, true, true, true, true}},
		"host down":      {func(h *fakeHost) { h.noOverlay, h.noUnder = true, true }, status.ProbeUnknown, status.ReasonNeverAnswered, [5]bool{}},
		"no such host":   {func(h *fakeHost) { h.unreachable = true }, status.ProbeDown, status.ReasonHostDown, [5]bool{}},
		"tunnel blocked": {func(h *fakeHost) { h.noOverlay = true }, status.ProbeDown, status.ReasonTunnelBlocked, [5]bool{3: true, 4: true}},
		"path MTU":       {func(h *fakeHost) { h.pathMTU, h.saysMTU = 1400, true }, status.ProbeDegraded, status.ReasonPathMTU, [5]bool{true, false, true, true, false}},
		"no forwarding":  {func(h *fakeHost) { h.noForwarding = true }, status.ProbeOK, "", [5]bool{true, true, false, true, true}},
		"echo filtered":  {func(h *fakeHost) { h.noEcho = true }, status.ProbeOK, "", [5]bool{2: true}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 2, func(w *world) {
				for i := range 2 {
					w.host(i, c.hit)
					began := time.Now()
					r, err := ask(w.t.Context(), w.question(i, 3), w.open)
					if err != nil {
						w.t.Fatal(err)
					}
					if r.State != c.state || r.Reason != c.reason || (r.Err == "") != (c.reason == "") {
						t.Errorf("%+v", r)
					}
					for k, l := range r.Lines {
						if l.Sent != 3 || len(l.RTTs) > 0 != c.answered[k] || c.answered[k] && (len(l.RTTs) != 3 || l.RTTs[0] != time.Millisecond) || l.Err != nil {
							t.Errorf("line %d: %+v", k, l)
						}
						if want := (kind(k) == full || k == underFull) && name == "path MTU"; (l.PathMTU == 1400) != want {
							t.Errorf("line %d: path MTU %d", k, l.PathMTU)
						}
					}
					if took := time.Since(began); took > 3*patience || name == "healthy" && took > 10*time.Millisecond {
						t.Errorf("took %s", took)
					}
				}
			})
		})
	}
}

// TestAskFails: no socket, no right to send, and no more wish to know.
func TestAskFails(t *testing.T) {
	run(t, 1, func(w *world) {
		q := w.question(0, 3)
		if _, err := ask(w.t.Context(), q, func(bool) (transport, error) { return nil, ErrNoSocket }); !errors.Is(err, ErrNoSocket) {
			t.Errorf("no socket: %v", err)
		}
		w.mu.Lock()
		w.unsent = errors.New("operation not permitted")
		w.mu.Unlock()
		r, err := ask(w.t.Context(), q, w.open)
		if err != nil || r.State != status.ProbeUnknown || r.Reason != status.ReasonNotSent || !strings.Contains(r.Err, "operation not permitted") {
			t.Errorf("not sent: %+v, %v", r, err)
		}
		w.mu.Lock()
		w.unsent = nil
		w.mu.Unlock()
		w.host(0, func(h *fakeHost) { h.noOverlay = true })
		ctx, cancel := context.WithTimeout(w.t.Context(), 1500*time.Millisecond)
		defer cancel()
		if _, err := ask(ctx, q, w.open); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stopped: %v", err)
		}
		synctest.Wait()
	})
}
