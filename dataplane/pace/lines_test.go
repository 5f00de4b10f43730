package pace

import (
	"fmt"
	"testing"
	"time"
)

// TestLines: fifty lines a minute are written, however many there are, and again in the next minute.
func TestLines(t *testing.T) {
	t.Parallel()
	var l Lines
	now := time.Unix(1000, 0)
	for i, c := range []struct {
		after time.Duration
		lines int
		want  int
		more  int
	}{{0, 30, 30, 0}, {59 * time.Second, 30, 20, 10}, {ms, 7, 0, 0}, {time.Second, 250, 50, 207}, {time.Hour, 3, 3, 0}, {time.Second, 50, 47, 3}, {58 * time.Second, 1, 0, 0}, {time.Second, 0, 0, 1}} {
		now = now.Add(c.after)
		got := 0
		for range c.lines {
			if l.Due(now) {
				got++
			}
		}
		if more := l.More(now); got != c.want || more != c.more {
			t.Errorf("step %d: %d lines and %d more, want %d and %d", i, got, more, c.want, c.more)
		}
		if next := l.Next(); got < c.lines && (next.Before(now) || next.After(now.Add(time.Minute))) {
			t.Errorf("step %d: next at %v, now is %v", i, next, now)
		}
	}
}

// TestNoticesOfManyBatches: new faults that come one by one are no more lines than those that come at once, and none of them
// is lost: their number is told a minute later at most.
func TestNoticesOfManyBatches(t *testing.T) {
	t.Parallel()
	var n Notices
	named, numbers, told, now := 0, 0, 0, time.Unix(1000, 0)
	const faults = 6000
	for i := range faults { // in a minute
		now = now.Add(10 * ms)
		say, more := n.Due(now, Notice{Key: fmt.Sprint(i)})
		if named += len(say); more > 0 {
			numbers++
			told += more
		}
	}
	if named+numbers > 100 {
		t.Errorf("%d lines in a minute", named+numbers)
	}
	next := n.Next()
	if next.IsZero() || next.After(now.Add(time.Minute)) {
		t.Fatalf("the number is told at %v, now is %v", next, now)
	}
	_, more := n.Due(next)
	if told += more; named+told != faults || !n.Next().IsZero() {
		t.Errorf("%d faults named and %d told as a number, of %d", named, told, faults)
	}
}
