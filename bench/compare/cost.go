package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// cost is two rows of which the first may not be much slower.
type cost struct {
	row, beside string
	floors      map[string]float64 // by metric
}

// costs are what the guard may cost, and a change of overlayd.
func costs() []cost {
	list := []cost{
		{"overlayd kernel", "overlayd kernel, no guard", map[string]float64{"tcp1_gbit_s": 0.95, "tcp8_gbit_s": 0.95, "udp64_kpps": 0.88}},
		{"overlayd userspace", "overlayd userspace, no guard", map[string]float64{"tcp1_gbit_s": 0.95, "tcp8_gbit_s": 0.95, "udp64_kpps": 0.95}},
	}
	for _, name := range []string{"overlayd kernel", "overlayd userspace", "overlayd userspace, socket", "overlayd userspace, plain"} {
		list = append(list, cost{name, name + before, map[string]float64{"tcp1_gbit_s": 0.97, "tcp8_gbit_s": 0.97, "udp64_kpps": 0.97}})
	}
	return list
}

// costMetric is a figure that two rows of a cost take turns to take.
type costMetric struct {
	key  string
	take func(way, context.Context, time.Duration) (float64, error)
}

func costMetrics() []costMetric {
	tcp := func(streams int) func(way, context.Context, time.Duration) (float64, error) {
		return func(w way, ctx context.Context, d time.Duration) (float64, error) {
			got, err := w.tcp(ctx, streams, d)
			if err != nil {
				return 0, err
			}
			return got.Gbit() / got.Elapsed.Seconds(), nil
		}
	}
	return []costMetric{
		{"tcp1_gbit_s", tcp(1)},
		{"tcp8_gbit_s", tcp(8)},
		{"udp64_kpps", func(w way, ctx context.Context, d time.Duration) (float64, error) {
			f := figures{}
			err := w.udp(ctx, 64, schedule{udp: d}, f, "udp64_kpps")
			return f["udp64_kpps"], err
		}},
	}
}

// turns are the two rows of a cost that are both set up. A machine changes its speed from second to second: the rows take turns so fast that it
// meets both.
type turns struct {
	of, beside way
	checks     []check // by costMetrics
}

// turnTime is how long one figure is taken at a time.
const turnTime = 60 * time.Millisecond

// costSlots is how many slots the turns of one cost take in each round.
const costSlots = 3

// findTurns returns the costs of which both rows are among the stands.
func findTurns(where string, stands []*stand) (list []*turns) {
	find := func(name string) (w way, ok bool) {
		for _, s := range stands {
			for _, l := range s.lines {
				if l.row.name == name {
					return s.pair.way(l.row), true
				}
			}
		}
		return way{}, false
	}
	titles := map[string]string{}
	for _, m := range groups()[0].metrics {
		titles[m.key] = m.title
	}
	for _, c := range costs() {
		t := &turns{}
		var there [2]bool
		t.of, there[0] = find(c.row)
		t.beside, there[1] = find(c.beside)
		if !there[0] || !there[1] {
			continue
		}
		for _, m := range costMetrics() {
			t.checks = append(t.checks, check{Name: fmt.Sprintf("%s/%s, by %s: %s", where, c.row, c.beside, titles[m.key]), Floor: c.floors[m.key]})
		}
		list = append(list, t)
	}
	return list
}

// take takes each figure of both rows n times, the one and the other first by turns. Only the end of ctx is an error.
func (t *turns) take(ctx context.Context, round, n int) error {
	for i, m := range costMetrics() {
		for turn := range n {
			var got [2]float64
			var errs [2]error
			for j := range 2 {
				k := (j + round + turn) % 2
				got[k], errs[k] = m.take([]way{t.of, t.beside}[k], ctx, turnTime)
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := errors.Join(errs[:]...); err != nil {
				t.checks[i].Errors = append(t.checks[i].Errors, fmt.Sprintf("round %d: %v", round+1, err))
				continue
			}
			t.checks[i].add(got[0], got[1])
		}
	}
	return nil
}

// turnsIn is how many turns each figure gets in a round whose slots last so long.
func turnsIn(slot time.Duration) int {
	return max(1, int(costSlots*slot/(2*turnTime)/time.Duration(len(costMetrics()))))
}

// takeCosts takes the turns of one round.
func (r *run) takeCosts(ctx context.Context, u underlay, round int, list []*turns) error {
	for _, t := range list {
		if err := t.take(ctx, round, turnsIn(r.plan.total())); err != nil {
			return err
		}
		for _, c := range t.checks {
			s, _ := summarise(c.Ratio.Values)
			r.say("%s %d/%d %s: %.3f", u.name, round+1, r.rounds, c.Name, s.Median)
		}
	}
	return nil
}
