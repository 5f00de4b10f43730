package node

import (
	"testing"
	"time"
)

// TestManagerIsTold: the service manager is told how the daemon is, and hears from it as long as its loops come round.
func TestManagerIsTold(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	w := newWorld(t)
	w.cfg.Watchdog = 300 * time.Millisecond
	w.setConfig(w.config(0, ""))
	w.start()
	w.awaitReady()
	told := func() (verdict string, beats int) {
		w.locked(func() { verdict, beats = w.verdict, w.beats })
		return verdict, beats
	}
	w.await("the verdict", func() bool { verdict, _ := told(); return verdict == "healthy" })
	w.await("a beat", func() bool { _, beats := told(); return beats > 1 })
	o := w.daemon.expects.all()[0].snapshot.Load().session.overlay
	w.await("held", o.TryHold) // the next Sync waits for it
	w.lease("10.5.77.0/24", "192.0.2.77")
	w.await("a line", func() bool { return w.log.count("a loop of the daemon is stuck") > 0 })
	_, before := told()
	w.await("another line", func() bool { return w.log.count("a loop of the daemon is stuck") > 2 })
	if _, after := told(); after != before {
		t.Errorf("%d beats while a loop is stuck", after-before)
	}
	o.LetGo()
	w.await("a beat again", func() bool { _, beats := told(); return beats > before })
}
