package pace

import (
	"context"
	"time"
)

// Backoff is a doubling delay with jitter, so that a thousand nodes that lose the store at one
// moment do not come back at one moment. It is for one goroutine.
type Backoff struct {
	Low, High time.Duration // the first and the longest delay, before jitter
	delay     time.Duration // of the next call, before jitter; 0: Low
}

// Next returns how long to wait now: between 3/4 and 5/4 of the delay, which then doubles.
func (b *Backoff) Next() time.Duration {
	d := min(max(b.delay, b.Low), b.High)
	b.delay = 2 * d
	return jitter(d)
}

// Reset starts again at Low.
func (b *Backoff) Reset() { b.delay = 0 }

// Sleep waits for d. It returns false if ctx ends or stop closes first; stop may be nil.
func Sleep(ctx context.Context, d time.Duration, stop <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-stop:
		return false
	case <-t.C:
		return true
	}
}

// Wake wakes whoever waits on c, a channel with room for one, and never waits itself.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
