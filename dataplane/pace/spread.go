package pace

import (
	"math/rand/v2"
	"time"
)

// Spread tells how long to wait between the first sign of a change and the look at it. The wait is
// short, Gather, unless there was a look a moment ago: then the next one comes Between after it, whatever
// was found. It is for one goroutine.
type Spread struct {
	Gather  time.Duration // between the first sign and the look, so that one cause of many changes is one look
	Between time.Duration // the least time between two looks
	// Rest bounds the pause after a look of ten times the look's duration, which keeps
	// expensive looks to a tenth of the time. 0: no such pause.
	Rest time.Duration

	rested time.Time // no look before this
}

// Wait returns how long to wait after a sign of a change that came at now.
func (s *Spread) Wait(now time.Time) time.Duration { return max(s.Gather, s.rested.Sub(now)) }

// Note takes into account a look that ended at now and took that long.
func (s *Spread) Note(took time.Duration, now time.Time) {
	s.rested = now.Add(max(s.Between, min(10*took, s.Rest)))
}

// jitter returns a duration between 3/4 and 5/4 of d.
func jitter(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2+1) }
