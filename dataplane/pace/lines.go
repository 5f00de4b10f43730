package pace

import "time"

const (
	linesSpan  = time.Minute
	linesBurst = 50 // in a span, and so fewer than 100 in any minute
)

// Lines lets 50 log lines of one kind through in a minute and holds the others back, to be told as a number. Whoever can cause
// lines, by what they write into the store for one, causes no more than that. The zero value is ready; it is for one goroutine.
type Lines struct {
	began time.Time // of the span
	n     int       // lines in it
	held  int       // lines that were not written, and not told
	told  bool      // their number, in this span
}

// Due reports whether one more line may be written now.
func (l *Lines) Due(now time.Time) bool {
	l.roll(now)
	if l.n == linesBurst {
		l.held++
		return false
	}
	l.n++
	return true
}

func (l *Lines) roll(now time.Time) {
	if now.Sub(l.began) >= linesSpan {
		l.began, l.n, l.told = now, 0, false
	}
}

// More returns how many lines were held back, if their number may be told now: once in a minute.
func (l *Lines) More(now time.Time) (held int) {
	if l.roll(now); l.told || l.held == 0 {
		return 0
	}
	held, l.held, l.told = l.held, 0, true
	return held
}

// Next returns when lines may be written again, after Due was false.
func (l *Lines) Next() time.Time { return l.began.Add(linesSpan) }
