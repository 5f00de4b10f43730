package controller

import (
	"math/rand/v2"
	"time"

	"github.com/overlayd/overlayd/dataplane/pace"
)

// renewIn returns when to renew a lease of which ttl is left: margin before its
// end, or after half of it if that is sooner. Up to a twentieth is taken
// off, so that nodes that started together do not renew together for ever.
func renewIn(ttl, margin time.Duration) time.Duration {
	wait := max(ttl-margin, ttl/2, 0)
	return wait - rand.N(wait/20+1)
}

// retryHigh is the longest pause between attempts to renew. With the time of an attempt that etcd does not answer it stays below
// the 10 s in which a node uses a store that is back.
const retryHigh = 4 * time.Second

// renewRetry returns the delays after a failed renewal of a lease that lasts ttl: for short leases often enough to get several
// attempts in.
func renewRetry(ttl time.Duration) pace.Backoff {
	high := min(max(ttl/20, 100*time.Millisecond), retryHigh)
	return pace.Backoff{Low: min(250*time.Millisecond, high), High: high}
}
