package pace

import "time"

const (
	linesSpan  = time.Second
	linesBurst = 100 // in a span
)

// Lines lets 100 log lines through in a second and holds the others back, to be told as a number. The zero value is
// ready; it is for one goroutine.
type Lines struct {
	began time.Time // of the second
	n     int       // lines in it
}

// Due reports whether one more line may be written now.
func (l *Lines) Due(now time.Time) bool {
	if now.Sub(l.began) >= linesSpan {
		l.began, l.n = now, 0
	}
	if l.n == linesBurst {
		return false
	}
	l.n++
	return true
}

// Next returns when lines may be written again, after Due was false.
func (l *Lines) Next() time.Time { return l.began.Add(linesSpan) }
