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
// back. A process with much that lives, or whose live objects lie scattered, gets more: else it would do nothing but collect. GOGC and GOMEMLIMIT win.
func Bound(ctx context.Context, small int64) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25)
	}
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	var limit int64
	for ok := true; ok; ok = pace.Sleep(ctx, time.Second, nil) {
		live, stacks, rest := measure()
		if next := limitFor(max(small, live/4*5+stacks+8<<20, live/16*17+rest+2<<20), limit); next != limit {
			limit = next
			debug.SetMemoryLimit(limit)
		}
	}
}

// limitFor returns the limit for a process that needs this many bytes. The limit before stays if it is enough and not much too large, because each
// change stops all threads for a moment. With less than it needs, the process would do little but collect.
func limitFor(bytes, before int64) int64 {
	if bytes > before || bytes < before/8*7 {
		return bytes / 16 * 17
	}
	return before
}

// measure returns what lives in the heap, what stacks have, and all memory that no object can have, nor the system back: stacks, Go's own, and room
// between objects. All are bytes.
func measure() (live, stacks, rest int64) {
	names := []string{"/gc/heap/live:bytes", "/memory/classes/heap/stacks:bytes", "/memory/classes/total:bytes",
		"/memory/classes/heap/objects:bytes", "/memory/classes/heap/free:bytes", "/memory/classes/heap/released:bytes"}
	now := make([]metrics.Sample, len(names))
	for i, name := range names {
		now[i].Name = name
	}
	metrics.Read(now)
	bytes := func(i int) int64 { return int64(now[i].Value.Uint64()) }
	return bytes(0), bytes(1), bytes(2) - bytes(3) - bytes(4) - bytes(5)
}
