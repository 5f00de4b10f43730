// Package garbage bounds what this process has of garbage.
package garbage

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/overlayd/overlayd/dataplane/pace"
)

// Bound bounds, until ctx ends, what the process has of garbage, and of memory that it does not use: whoever may write to a store or ask
// a server decides how much is read, and how often. If Go has more than small bytes, it collects garbage at once and gives it
// back. A process with much that lives gets more: else it would do nothing but collect. GOGC and GOMEMLIMIT win.
func Bound(ctx context.Context, small int64) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25)
	}
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	now := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	var limit int64
	for ok := true; ok; ok = pace.Sleep(ctx, time.Second, nil) {
		metrics.Read(now)
		live, stacks := int64(now[0].Value.Uint64()), int64(now[1].Value.Uint64())
		if next := max(small, live/4*5+stacks+8<<20); next < limit/8*7 || next > limit/8*9 { // each change stops all threads for a moment
			limit = next
			debug.SetMemoryLimit(limit)
		}
	}
}
