package pace

import (
	"maps"
	"time"
)

const (
	holdLow  = 100 * time.Millisecond // after the first repair that was fought over
	holdHigh = 500 * time.Millisecond // the most, before jitter
)

// Holds tells which objects are not to be repaired yet, because somebody keeps undoing that. Each such repair
// doubles the pause before the next one of the same object, and of no other. The zero value is ready; it is
// for one goroutine.
type Holds struct {
	held map[string]hold // by object
}

type hold struct {
	pause time.Duration // before jitter
	until time.Time
}

// Fought notes a repair of an object that was fought over.
func (h *Holds) Fought(now time.Time, object string) {
	if h.held == nil {
		h.held = map[string]hold{}
	}
	pause := min(max(holdLow, 2*h.held[object].pause), holdHigh)
	h.held[object] = hold{pause, now.Add(jitter(pause))}
}

// Any reports whether an object may be held, and forgets the fights that are over.
func (h *Holds) Any(now time.Time) bool {
	maps.DeleteFunc(h.held, func(_ string, o hold) bool { return now.Sub(o.until) > fightWithin })
	return len(h.held) > 0
}

// Held reports whether the repair of an object has to wait, and how long.
func (h *Holds) Held(now time.Time, object string) (left time.Duration, held bool) {
	left = h.held[object].until.Sub(now)
	return left, left > 0
}
