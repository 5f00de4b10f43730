package garbage

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

// TestScattered: a process whose live objects lie scattered over more memory than it may have does not do nothing but collect garbage: it may make
// some new objects before the next collection.
func TestScattered(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "")
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	const peak, each, apart, small, want = 96 << 20, 512, 16, 32 << 20, 2 << 20
	var kept [][]byte
	for i := range peak / each {
		if b := make([]byte, each); i%apart == 0 {
			kept = append(kept, b)
		}
	}
	runtime.GC()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); Bound(ctx, small) }()
	defer func() { cancel(); <-ended }()
	for debug.SetMemoryLimit(-1) == math.MaxInt64 {
		time.Sleep(time.Millisecond)
	}
	runtime.GC()
	now := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(now)
	if goal, live := now[0].Value.Uint64(), now[1].Value.Uint64(); goal < live+want/2 {
		t.Errorf("the next collection is at %d bytes, and %d live: want %d for new objects", goal, live, want)
	}
	runtime.KeepAlive(kept)
}

// TestLimit: what the process is to have it always has, and little more.
func TestLimit(t *testing.T) {
	const mega = 1 << 20
	limit, changes := int64(0), 0
	for _, bytes := range []int64{32 * mega, 33 * mega, 35 * mega, 37 * mega, 50 * mega, 49 * mega, 54 * mega, 40 * mega} {
		next := limitFor(bytes, limit)
		if next < bytes || next > bytes/4*5 {
			t.Errorf("%d MiB: the limit is %d MiB", bytes/mega, next/mega)
		}
		if next != limit {
			changes++
		}
		limit = next
	}
	if changes != 5 {
		t.Errorf("%d changes of the limit, want 5", changes)
	}
}
