package pace

import "time"

const (
	noticeRepeat = 10 * time.Minute // an unchanged fault is reported again after this
	noticeKept   = 1024             // remembered before old ones are forgotten
)

// Notice is one fault to report: the object that it concerns, and what is wrong.
type Notice struct{ Key, Text string }

// Notices decides which of the present faults to report now. A fault that comes and goes
// is reported once in Repeat, and of all together no more than [Lines] allows, so that nobody
// can fill the log by causing them. The zero value is ready; it is for one goroutine.
type Notices struct {
	Repeat   time.Duration // an unchanged fault is reported again after this; 0: 10 minutes
	reported map[Notice]time.Time
	lines    Lines
}

// Due returns those of current that are new, changed or due again, as far as they may be reported now, and
// how many more there were, now or before: that number comes once in a minute at most.
func (n *Notices) Due(now time.Time, current ...Notice) (report []Notice, more int) {
	if n.reported == nil {
		n.reported = map[Notice]time.Time{}
	}
	for _, c := range current {
		if at, ok := n.reported[c]; ok && now.Sub(at) < n.repeat() {
			continue
		}
		n.reported[c] = now
		if n.lines.Due(now) {
			report = append(report, c)
		}
	}
	if len(n.reported) > noticeKept+len(current) {
		n.forget(now, current)
	}
	return report, n.lines.More(now)
}

// Next returns when a call of Due, even one without notices, will report how many notices were held back. It is zero if none were held back.
func (n *Notices) Next() (at time.Time) {
	if n.lines.held == 0 {
		return time.Time{}
	}
	return n.lines.Next()
}

func (n *Notices) repeat() time.Duration {
	if n.Repeat > 0 {
		return n.Repeat
	}
	return noticeRepeat
}

// forget drops what is over: first what is old, and everything that is not current
// if that is not enough.
func (n *Notices) forget(now time.Time, current []Notice) {
	for k, at := range n.reported {
		if now.Sub(at) >= n.repeat() {
			delete(n.reported, k)
		}
	}
	if len(n.reported) <= noticeKept+len(current) {
		return
	}
	kept := make(map[Notice]time.Time, len(current))
	for _, c := range current {
		if at, ok := n.reported[c]; ok {
			kept[c] = at
		}
	}
	n.reported = kept
}
