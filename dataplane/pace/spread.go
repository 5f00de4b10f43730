package pace

import (
	"math/rand/v2"
	"time"
)

// Finding is the result of one look at something that others may have changed.
type Finding uint8

// The findings.
const (
	Nothing Finding = iota // there was no reason to look
	Intact                 // everything was as it had been left
	Altered                // somebody had changed something
)

// quietPauses is how many pauses without a look make the next pause short again.
const quietPauses = 10

// Spread tells how long to wait between the first sign of a change and the look at it.
// The shortest wait is Gather, so that one cause of many changes is one look. While looks
// keep coming the wait doubles, up to a limit for each finding, with jitter. It is for one
// goroutine.
type Spread struct {
	Gather  time.Duration // the shortest wait; without jitter
	Intact  time.Duration // the longest wait, before jitter, while looks find nothing to repair; 0: Gather
	Altered time.Duration // the longest wait, before jitter, while others keep undoing repairs; 0: Gather
	// Rest bounds the pause after a look of ten times the look's duration, which keeps
	// expensive looks to a tenth of the time. 0: no such pause.
	Rest time.Duration

	pause  time.Duration // before the next look; 0: Gather
	last   time.Time     // when a look last made the pause longer
	rested time.Time     // no look before this
}

// Wait returns how long to wait after a sign of a change that came at now.
func (s *Spread) Wait(now time.Time) time.Duration {
	if now.Sub(s.last) > quietPauses*s.pause {
		s.pause = 0
	}
	d := max(s.pause, s.Gather)
	if d > s.Gather {
		d = max(jitter(d), s.Gather)
	}
	return max(d, s.rested.Sub(now))
}

// Note takes into account a look that ended at now, took so long and found f.
func (s *Spread) Note(f Finding, took time.Duration, now time.Time) {
	if s.Rest > 0 {
		s.rested = now.Add(min(10*took, s.Rest))
	}
	limit := s.Altered
	switch f {
	case Nothing:
		return
	case Intact:
		limit = s.Intact
	}
	pause := max(s.pause, s.Gather)
	if limit = max(limit, s.Gather); pause < limit || f == Altered {
		s.pause, s.last = min(2*pause, limit), now
	}
}

// jitter returns a duration between 3/4 and 5/4 of d.
func jitter(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2+1) }
