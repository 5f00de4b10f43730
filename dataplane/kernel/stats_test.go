package kernel

import (
	"context"
	"testing"
	"time"
)

// What the daemon logs at its end is read after Run, and was not read before.
func TestStatsAfterRun(t *testing.T) {
	a, b := join(t, newHosts(t, 2))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.dp.Run(ctx, func() {}) }()
	echo(t, a, b, 100, time.Second)
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if s := a.dp.Stats(); s.TxPackets != 1 || s.RxPackets != 1 || s.TxBytes != 128 {
			t.Errorf("got %+v", s)
		}
		a.dp.Close()
	}
}
