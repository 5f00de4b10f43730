package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
)

// demoPair is two ends and the way between them.
type demoPair struct {
	from, to string // "pod1", "host2"
	path     string // the two dataplanes
	fromNS   *demoNS
	toNS     *demoNS
	addr     netip.Addr // of to
	tcp      bool       // measure a stream, too
}

// demoResult is what was measured of a pair. A zero value of what follows the
// pair means that it was not measured.
type demoResult struct {
	demoPair
	ping demoPing
	gbit float64 // Gbit/s of payload
	err  error
}

// pairs returns every ordered pair of pods, and every host with every pod that
// is not its own.
func (d *demo) pairs() (out []demoPair) {
	add := func(kind string, tcp bool, ns func(*demoHost) *demoNS) {
		for _, a := range d.hosts {
			for _, b := range d.hosts {
				if a == b {
					continue
				}
				out = append(out, demoPair{
					from: fmt.Sprintf("%s%d", kind, a.num), to: fmt.Sprintf("pod%d", b.num),
					path: a.mode + " → " + b.mode, fromNS: ns(a), toNS: b.pod, addr: b.podAddr(), tcp: tcp,
				})
			}
		}
	}
	add("pod", true, func(h *demoHost) *demoNS { return h.pod })
	add("host", false, func(h *demoHost) *demoNS { return h.ns })
	return out
}

// measure measures every pair, one after the other so that they do not disturb
// each other, and goes on after one that fails.
func (d *demo) measure(ctx context.Context) []demoResult {
	results := d.reach(ctx)
	d.step("pinging %d pairs, %d times each", len(results), demoPings)
	for i := range results {
		if r := &results[i]; r.err == nil {
			r.ping, r.err = pingTimes(ctx, r.fromNS, r.addr, demoPings)
		}
	}
	pods := demoHosts * (demoHosts - 1)
	d.step("moving TCP between %d pairs of pods, %s each, every byte checked", pods, demoStream)
	for i := range results {
		if r := &results[i]; r.err == nil && r.tcp {
			r.gbit, r.err = stream(ctx, r.fromNS, r.toNS, r.addr, demoStream)
		}
	}
	return results
}

// reach waits until every pair has exchanged one ping: a daemon is ready before
// the others have heard of it.
func (d *demo) reach(ctx context.Context) []demoResult {
	ctx, cancel := context.WithTimeoutCause(ctx, demoReach, errors.New("unreachable"))
	defer cancel()
	pairs := d.pairs()
	results := make([]demoResult, len(pairs))
	var all sync.WaitGroup
	for i, p := range pairs {
		results[i].demoPair = p
		all.Go(func() { results[i].err = awaitPing(ctx, p.fromNS, p.addr) })
	}
	all.Wait()
	return results
}
