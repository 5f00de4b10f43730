package etcdrpc

import (
	"math"
	"testing"
	"time"
)

// TestTTLsOfStrangeServers: whatever number of seconds an etcd says, a lease that is there does not end in the past.
func TestTTLsOfStrangeServers(t *testing.T) {
	for n, want := range map[int64]time.Duration{
		math.MinInt64: -time.Second, -1: -time.Second, 0: 0, 20: 20 * time.Second, 86400: 24 * time.Hour,
		9_223_372_037: maxTTL, 1 << 62: maxTTL, math.MaxInt64: maxTTL,
	} {
		if got := seconds(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
