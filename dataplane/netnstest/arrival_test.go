package netnstest

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestAwaitArrival(t *testing.T) {
	for _, tt := range []struct {
		name             string
		each             time.Duration // between two arrivals
		arriving, counts uint64
		takes            time.Duration
	}{
		{"all are there", 0, 10, 10, 0},
		{"late, one after the other", 900 * time.Millisecond, 10, 10, 9 * time.Second},
		{"some are lost", 100 * time.Millisecond, 7, 7, 1700 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var received atomic.Uint64
				arrive := func() {
					for range tt.arriving {
						time.Sleep(tt.each)
						received.Add(1)
					}
				}
				if tt.each == 0 {
					arrive()
				} else {
					go arrive()
				}
				began := time.Now()
				AwaitArrival(10, received.Load)
				took := time.Since(began)
				if got := received.Load(); got != tt.counts || (took-tt.takes).Abs() > 20*time.Millisecond {
					t.Errorf("%d have arrived after %s, want %d after %s", got, took, tt.counts, tt.takes)
				}
			})
		})
	}
}
