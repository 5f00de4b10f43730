package agent

import (
	"cmp"
	"math"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"github.com/overlayd/overlayd/bench/testbed"
)

// Ping asks for echo requests for a time, each Gap after the reply to the one
// before: 0 is a flood.
type Ping struct {
	To        netip.Addr
	Time, Gap time.Duration
}

// Pinged is the round trips. An echo without a reply counts as pingPatience.
type Pinged struct {
	Sent, Lost     int
	Mean, P50, P99 time.Duration
}

// pingPatience is how long the next request waits for a reply. A later reply still counts.
const pingPatience = 100 * time.Millisecond

// Ping sends ICMP echo requests, which the other host's kernel answers.
func (a *Agent) Ping(in Ping, out *Pinged) error {
	p, err := testbed.NewPinger(in.To, pingPatience)
	if err != nil {
		return err
	}
	defer p.Close()
	p.RTTs = make([]time.Duration, 0, 1<<18) // it does not grow while it measures
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for deadline := time.Now().Add(in.Time); p.Sent == 0 || time.Now().Before(deadline); {
		if _, err := p.Once(); err != nil {
			return err
		}
		if in.Gap > 0 {
			time.Sleep(in.Gap)
		}
	}
	*out = Pinged{Sent: p.Sent, Lost: p.Lost()}
	rtts := p.RTTs
	for range out.Lost {
		rtts = append(rtts, pingPatience)
	}
	out.Mean, out.P50, out.P99 = mean(rtts), percentile(rtts, 50), percentile(rtts, 99)
	return nil
}

// mean of v, which is not empty.
func mean(v []time.Duration) time.Duration {
	var sum time.Duration
	for _, d := range v {
		sum += d
	}
	return sum / time.Duration(len(v))
}

// percentile sorts v, which is not empty, and returns the value that p percent
// of it do not exceed (nearest rank).
func percentile[T cmp.Ordered](v []T, p float64) T {
	slices.Sort(v)
	rank := int(math.Ceil(p / 100 * float64(len(v))))
	return v[min(max(rank, 1), len(v))-1]
}
