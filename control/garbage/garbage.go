package embedded

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/overlayd/overlayd/dataplane/pace"
)

// smallLimit is what Go may have of memory before it collects garbage at once and gives it back, in bytes.
const smallLimit = 72 << 20

// KeepSmall bounds, until ctx ends, what a process that runs a Server has of garbage, and of memory that it does not use: clients decide
// how much they read, and how often. GOGC and GOMEMLIMIT win. A server with much that lives gets more: else it would do nothing but collect.
func KeepSmall(ctx context.Context) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25)
	}
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	now := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	for ok := true; ok; ok = pace.Sleep(ctx, time.Second, nil) {
		metrics.Read(now)
		live, stacks := int64(now[0].Value.Uint64()), int64(now[1].Value.Uint64())
		debug.SetMemoryLimit(max(smallLimit, live/4*5+stacks+8<<20))
	}
}
