package main

import (
	"slices"
	"testing"
	"time"
)

// TestTUNDeletedAgain: each time that somebody deletes the TUN device costs less than a second of traffic, however
// often he does. With OVERLAYD_DRIFT, as in make test-long, he does it every five seconds for that time.
func TestTUNDeletedAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, testNetwork)
	a, b := c.upPair([2]string{modeUserspace, modeUserspace})
	there, back := startUnboundedMeters(t, a, b)
	every, until := 1200*time.Millisecond, time.Now().Add(3*time.Second)
	if long := durationFrom(t, "OVERLAYD_DRIFT", 0); long > 0 {
		every, until = 5*time.Second, time.Now().Add(long)
	}
	var took []time.Duration // until traffic goes both ways again
	for time.Now().Before(until) {
		next := time.Now().Add(every)
		c.hosts[0].Run("ip", "link", "del", "flannel.1")
		began := now(t)
		waitTraffic(t, there, 10)
		waitTraffic(t, back, 10)
		took = append(took, began.passed(t).Round(time.Millisecond))
		time.Sleep(time.Until(next))
	}
	there.finish()
	back.finish()
	t.Logf("back after %v", took)
	if worst := slices.Max(took); worst > promised(time.Second) {
		t.Errorf("back after %s", worst)
	}
}
