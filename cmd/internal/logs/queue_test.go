package logs

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestQueueBlocks: lines for a writer that blocks cost nobody more than patience, those that fit are written in their order once it goes
// on, and all others are counted.
func TestQueueBlocks(t *testing.T) { // not parallel: it counts
	r, w := io.Pipe()
	q := NewQueue(w)
	began, before := time.Now(), Lost()
	const lines = 10_000
	for i := range lines {
		fmt.Fprintf(q, "line %d\n", i)
	}
	q.Flush(time.Millisecond)
	if took := time.Since(began); took > 20*patience {
		t.Errorf("%d lines took %s", lines, took)
	}
	if q.Blocked().IsZero() {
		t.Error("nobody is told")
	}
	lost := int(Lost() - before)
	if lost == 0 || lost > lines-room/len("line 1000\n") {
		t.Errorf("%d lines lost", lost)
	}
	read := make(chan string)
	go func() {
		b, _ := io.ReadAll(r)
		read <- string(b)
	}()
	q.Flush(time.Minute)
	q.Flush(time.Minute) // there is nothing to wait for
	w.Close()
	var want strings.Builder
	for i := range lines - lost {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	if got := <-read; got != want.String() {
		t.Errorf("%d bytes, want the first %d lines:\n%.300s", len(got), lines-lost, got)
	}
	fmt.Fprintln(q, "to nobody")
	if !q.Blocked().IsZero() || Lost()-before != uint64(lost)+1 {
		t.Errorf("blocked since %s, %d lines lost", q.Blocked(), Lost()-before)
	}
}

// TestQueueWaits: a line is written when Write returns, of several goroutines each whole, and one that has no room by itself, too.
func TestQueueWaits(t *testing.T) {
	t.Parallel()
	var out safe
	q := NewQueue(&out)
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Go(func() {
			for n := range 100 {
				text := fmt.Sprintf("<%d %d %s>\n", i, n, strings.Repeat("x", n))
				q.Write([]byte(text))
				if got := out.String(); !strings.Contains(got, text) {
					t.Errorf("%q is not written", text)
				}
			}
		})
	}
	wait.Wait()
	long := strings.Repeat("y", 2*room)
	q.Write([]byte(long))
	if !strings.HasSuffix(out.String(), long) {
		t.Error("the long line is not written")
	}
}
