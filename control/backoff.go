package control

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff is a doubling delay with jitter, so that a thousand nodes that lose the
// store at one moment do not come back at one moment.
type backoff struct {
	low, high time.Duration
	delay     time.Duration // of the next call, before jitter; 0: low
}

// next returns how long to wait now: between 3/4 and 5/4 of the delay, which then doubles.
func (b *backoff) next() time.Duration {
	d := min(max(b.delay, b.low), b.high)
	b.delay = 2 * d
	return d*3/4 + rand.N(d/2+1)
}

// reset starts again at low.
func (b *backoff) reset() { b.delay = 0 }

// pause waits for d, and returns false if ctx ends or stop closes first.
func pause(ctx context.Context, d time.Duration, stop <-chan struct{}) bool {
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

// renewIn returns when to renew a lease of which ttl is left: margin before its
// end, or after half of it where that would be sooner. Up to a twentieth is taken
// off, so that nodes that started together do not renew together for ever.
func renewIn(ttl, margin time.Duration) time.Duration {
	wait := max(ttl-margin, ttl/2, 0)
	return wait - rand.N(wait/20+1)
}

// renewRetry returns the delays after a failed renewal of a lease that lasts ttl:
// up to a minute, but for short leases often enough to get several attempts in.
func renewRetry(ttl time.Duration) backoff {
	high := min(max(ttl/20, 100*time.Millisecond), time.Minute)
	return backoff{low: min(250*time.Millisecond, high), high: high}
}
