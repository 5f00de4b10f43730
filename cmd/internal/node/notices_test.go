package node

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
)

// TestWarnOnceAtOnce: the goroutines of a session may meet faults at the same time.
func TestWarnOnceAtOnce(t *testing.T) {
	t.Parallel()
	n := &Network{log: slog.New(slog.DiscardHandler)}
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for i := range 2000 {
				n.warnOnce(fmt.Sprint("fault ", i%500), errors.New("x"))
			}
		})
	}
	wait.Wait()
}
