package testbed

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"
)

// reachTimeout is how long all pairs may take to reach each other: a daemon is
// ready before the others have heard of it.
const reachTimeout = 10 * time.Second

// Pair is two ends and the way between them.
type Pair struct {
	From, To string // "pod1", "host2"
	Path     string // the dataplanes of both
	FromNS   *Namespace
	ToNS     *Namespace
	Addr     netip.Addr // of To
	TCP      bool       // a stream is measured too
}

// Result is what was measured of a pair. What was not measured is zero.
type Result struct {
	Pair
	Ping Pinged
	Gbit float64 // Gbit/s of payload
	Err  error
}

// Pairs returns every ordered pair of pods, and every host with every pod that is
// not its own.
func (t *Testbed) Pairs() (out []Pair) {
	each := func(visit func(a, b *Host)) {
		for _, a := range t.Hosts {
			for _, b := range t.Hosts {
				if a != b {
					visit(a, b)
				}
			}
		}
	}
	add := func(from string, ns *Namespace, a, b *Host, tcp bool) {
		out = append(out, Pair{
			From: from, To: b.PodName(), Path: a.Dataplane + " → " + b.Dataplane,
			FromNS: ns, ToNS: b.Pod, Addr: b.Lease.Pod(), TCP: tcp,
		})
	}
	each(func(a, b *Host) { add(a.PodName(), a.Pod, a, b, true) })
	each(func(a, b *Host) { add(a.Name, a.NS, a, b, false) })
	return out
}

// Reach waits until every pair has exchanged one ping.
func Reach(ctx context.Context, pairs []Pair) []Result {
	ctx, cancel := context.WithTimeoutCause(ctx, reachTimeout, errors.New("unreachable"))
	defer cancel()
	results := make([]Result, len(pairs))
	var all sync.WaitGroup
	for i, p := range pairs {
		results[i].Pair = p
		all.Go(func() { results[i].Err = p.FromNS.AwaitPing(ctx, p.Addr) })
	}
	all.Wait()
	return results
}

// MeasurePing measures the pairs without an error one after the other, so that they
// do not disturb each other.
func MeasurePing(ctx context.Context, results []Result, want Pings) {
	for i := range results {
		if r := &results[i]; r.Err == nil {
			r.Ping, r.Err = r.FromNS.Ping(ctx, r.Addr, want)
		}
	}
}

// MeasureTCP is MeasurePing for streams of length d, between the pairs that ask for it.
func MeasureTCP(ctx context.Context, results []Result, d time.Duration) {
	for i := range results {
		r := &results[i]
		if r.Err != nil || !r.TCP {
			continue
		}
		var got Received
		if got, r.Err = Stream(ctx, r.FromNS, r.ToNS, r.Addr, d); r.Err == nil {
			r.Gbit = got.Gbit()
		}
	}
}
