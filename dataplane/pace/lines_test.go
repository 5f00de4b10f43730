package pace

import (
	"testing"
	"time"
)

// TestLines: a hundred lines a second are written, however many there are, and again in the next second.
func TestLines(t *testing.T) {
	t.Parallel()
	var l Lines
	now := time.Unix(1000, 0)
	for i, c := range []struct {
		after time.Duration
		lines int
		want  int
	}{{0, 60, 60}, {999 * ms, 60, 40}, {ms, 250, 100}, {time.Hour, 3, 3}, {500 * ms, 100, 97}, {499 * ms, 1, 0}, {ms, 1, 1}} {
		now = now.Add(c.after)
		got := 0
		for range c.lines {
			if l.Due(now) {
				got++
			}
		}
		if got != c.want {
			t.Errorf("step %d: %d lines, want %d", i, got, c.want)
		}
		if next := l.Next(); got < c.lines && (next.Before(now) || next.After(now.Add(time.Second))) {
			t.Errorf("step %d: next at %v, now is %v", i, next, now)
		}
	}
}
