package controller

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/overlayd/overlayd/control"
)

// TestInboxIsBounded: who fills it waits until something is taken, or until the end, and loses nothing.
func TestInboxIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		in := newInbox()
		const updates = 10 * maxPending
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range updates {
				in.put(ctx, control.Update{Deleted: []string{"x"}})
			}
		}()
		got := 0
		for got < updates {
			synctest.Wait()
			took := len(in.take())
			if took == 0 || took > maxPending {
				t.Fatalf("%d pending, after %d", took, got)
			}
			got += took
		}
		<-done
		full := control.Update{Bad: make([]control.BadLease, maxPending)}
		in.put(ctx, full) // whole
		go in.put(ctx, full)
		synctest.Wait()
		cancel() // ends the one that waits: synctest fails if not
	})
}
