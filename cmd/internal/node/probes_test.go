package node

import (
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
)

// TestProbes: a session asks the peers of its controller, and none if nobody wants that. The next session asks from the start, and goes on counting.
func TestProbes(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	for _, on := range []bool{true, false} {
		w := newWorld(t)
		if on {
			w.cfg.ProbeInterval = 100 * time.Millisecond
		}
		w.setConfig(w.config(0, ""))
		w.lease("10.5.77.0/24", "192.0.2.77")
		w.start()
		w.awaitReady()
		if !on {
			if p := w.status().Probes; p != nil {
				t.Errorf("%+v", p)
			}
			continue
		}
		// Nothing carries the packets here, so that nothing can be known.
		w.await("probed", func() bool {
			p := w.status().Probes
			return p != nil && len(p.Peers) == 1 && p.Counts.Sent+p.Counts.Unsent > 3 && p.Peers[0].State != status.ProbeOK && p.Peers[0].Subnet == w.status().Peers[0].Subnet
		})
		first, counted := w.status().SessionStart, w.status().Probes.Counts
		w.forward().die <- errDown
		w.await("in another session", func() bool {
			s := w.status()
			if p := s.Probes; p == nil || p.Counts.Sent+p.Counts.Unsent < counted.Sent+counted.Unsent {
				t.Fatalf("the counters fall: %+v", p)
			}
			return s.SessionStart.After(first) && len(s.Probes.Peers) == 1
		})
	}
}
