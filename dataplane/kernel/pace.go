package kernel

import "time"

const (
	// gather is the time between the first sign of a change and the repair, so that
	// one cause of many changes is one repair.
	gather = 100 * time.Millisecond
	// maxPause bounds how far repairs are spread while somebody keeps undoing them.
	maxPause = 30 * time.Second
	// maxVain bounds how far comparisons are spread that find nothing to repair,
	// as when so much is programmed that notifications are lost. It leaves time
	// for an event to be looked at twice within two seconds.
	maxVain = 400 * time.Millisecond
)

// finding is what came of the events.
type finding uint8

const (
	nothing finding = iota // no event was a reason to look
	intact                 // the kernel was as it had been left
	altered                // it was not
)

// pace says how long to wait after a notification before looking.
type pace struct {
	pause time.Duration
	last  time.Time // when looking last made the pause longer
}

func newPace() *pace { return &pace{pause: gather} }

// wait returns the pause, which is short again after a quiet time.
func (p *pace) wait(now time.Time) time.Duration {
	if now.Sub(p.last) > 10*p.pause {
		p.pause = gather
	}
	return p.pause
}

// note makes the pause longer after a look.
func (p *pace) note(f finding, now time.Time) {
	switch {
	case f == altered:
		p.pause, p.last = min(2*p.pause, maxPause), now
	case f == intact && p.pause < maxVain:
		p.pause, p.last = min(2*p.pause, maxVain), now
	}
}
