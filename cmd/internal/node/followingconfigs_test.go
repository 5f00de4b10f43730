package node

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/logs"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
)

// TestConfigsThatFollowOneAnother: while the config changes to and fro a hundred times a second, few sessions follow one another, the last of them is ready and
// follows leases, and the log does not fill. The config that stays is applied.
func TestConfigsThatFollowOneAnother(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	w := newWorld(t)
	w.cfg.StoreLog = logs.NewBound(w.cfg.Log)
	w.setConfig(w.config(0, ""))
	w.start()
	w.awaitReady()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				w.setConfig(w.config(uint32(i%2), ""))
			}
		}
	}()
	w.await("a config is held", func() bool { h := w.status().ConfigHeld; return h != nil && !h.Until.IsZero() })
	w.awaitReady()
	sessions, vni := w.opens(), w.status().VNI
	for i := range 20 {
		subnet := fmt.Sprintf("10.5.%d.0/24", 200+i)
		// of no link of other tests, which would have a say in whether it is used
		l := control.Lease{Subnet: mustPrefix(subnet), PublicIP: mustAddr(fmt.Sprintf("198.51.100.%d", 100+i)), BackendType: "vxlan"}
		l.Backend = control.VTEPData{VNI: vni, MAC: dataplane.MAC(l.PublicIP, vni)}
		if slices.Contains(w.leases(), l.Key()) { // it is the daemon's own
			continue
		}
		w.memory("").PutLeased(nil, l.Key(), l.Value())
		began := time.Now()
		w.await(subnet+" is used", func() bool {
			last, _ := w.forward().seen()
			return slices.ContainsFunc(last.Peers, func(p dataplane.Peer) bool { return p.Subnets[0].String() == subnet })
		})
		if took := time.Since(began); took > time.Second {
			t.Errorf("%s was used after %s", subnet, took)
		}
	}
	if n := w.opens() - sessions; n > 0 {
		t.Errorf("%d further sessions", n)
	}
	close(stop)
	<-done
	w.setConfig(w.config(2, ""))
	w.await("the last config is applied", func() bool { st := w.status(); return st.Ready && st.VNI == w.vni+2 })
}

// TestNoteEnd: a few configs that follow one another are applied at once. The next ones have to stand, for longer each time, and so has one that comes as soon as the
// session before has begun; after a session that has lasted none has to.
func TestNoteEnd(t *testing.T) {
	var f follows
	for i, c := range []struct {
		lasted   time.Duration
		outdated bool
		want     time.Duration
	}{
		{time.Hour, true, 0}, {time.Second, false, 0}, {time.Second, true, 0}, {time.Second, true, 0}, {time.Second, true, 0},
		{time.Second, true, firstStand}, {time.Second, true, 2 * firstStand}, {time.Second, false, 2 * firstStand},
		{0, true, 4 * firstStand}, {0, true, 8 * firstStand}, {0, true, 16 * firstStand}, {0, true, 32 * firstStand}, {0, true, lastStand},
		{lastStand, true, lastStand}, {lastStand + calm, true, 0}, {0, true, firstStand}, {calm + firstStand, false, 0}, {time.Second, true, 0},
	} {
		if f.noteEnd(c.lasted, c.outdated); f.stand != c.want {
			t.Errorf("session %d: the next config has to stand for %s, want %s", i, f.stand, c.want)
		}
	}
}
