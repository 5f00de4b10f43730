package controller_test

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestGivenBackIsNotLost: what a node has given back does not count as lost by the store when it starts again.
func TestGivenBackIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		for i := 2; i <= 3; i++ {
			b.memory.PutRaw(t, otherKey(i), goodLease(i))
		}
		b.held(otherNet)
		time.Sleep(leasesWritten)
		if err := b.ctl.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.kill()
		b.memory.DeleteRaw(t, otherKey(2))
		b.held(otherNet)
		time.Sleep(5 * time.Second)
		b.wantPeers("while one of two others has gone", 1)
	})
}
