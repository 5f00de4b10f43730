package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// run is one comparison.
type run struct {
	options
	out   io.Writer // progress
	dir   string    // of all hosts' files
	start time.Time
	left  ledger
	plan  schedule // of this round

	mu       sync.Mutex // of what follows, and of out
	programs []*program
	checks   []check // but for those of attacks
}

// say prints progress, with the seconds since the start.
func (r *run) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, "%6.1fs  %s\n", time.Since(r.start).Seconds(), fmt.Sprintf(format, args...))
}

// all measures everything selected.
func (r *run) all(ctx context.Context, list []candidate) (*report, error) {
	rep := &report{Start: r.start, Rounds: r.rounds, Reference: reference, Machine: readMachine(), Metrics: meanings()}
	jobs := selectJobs(r.only, list)
	if len(jobs) == 0 && !r.wantsAttacks() && !r.wantsMemory() {
		return nil, fmt.Errorf("--only: %q matches no row", r.only)
	}
	r.findPrograms(ctx, jobs)
	r.left.setups = len(jobs)
	for _, j := range jobs {
		r.left.slots += j.slots() * r.rounds
	}
	plan, fits := newSchedule(r.budget, r.left)
	r.say("%.1f s of traffic for each row in every round", plan.total().Seconds())
	if !fits {
		r.say("that takes longer than %s: --rounds or --only make it shorter", r.budget)
	}
	for _, j := range jobs {
		u, err := r.one(ctx, j)
		if err != nil {
			return nil, err
		}
		rep.Underlays = append(rep.Underlays, u)
	}
	attacks, err := r.attackAll(ctx)
	if err != nil {
		return nil, err
	}
	if rep.Memory, err = r.memoryAll(ctx); err != nil {
		return nil, err
	}
	rep.Programs, rep.Checks = r.programs, append(r.checks, attacks...)
	rep.Seconds = time.Since(r.start).Seconds()
	rep.Machine.LoadEnd = loadAverage()
	return rep, nil
}

// one sets up all candidates of an underlay, measures round by round and takes them down.
func (r *run) one(ctx context.Context, j job) (rep underlayReport, err error) {
	rep = underlayReport{Name: j.underlay.name, Features: strings.Join(j.underlay.features, " ")}
	stands, err := r.setUp(ctx, j)
	r.left.setups--
	defer func() {
		var group errgroup.Group
		for _, s := range stands {
			group.Go(s.pair.close)
		}
		err = errors.Join(err, group.Wait())
	}()
	if err != nil {
		return rep, err
	}
	costs := findTurns(j.underlay.name, stands)
	for round := range r.rounds {
		start := time.Now()
		r.plan, _ = newSchedule(r.budget-start.Sub(r.start), r.left)
		for i := range stands {
			// Another one comes first in every round: nobody always follows the same.
			s := stands[(i+round)%len(stands)]
			if err := r.measure(ctx, j.underlay, round, s); err != nil {
				return rep, err
			}
		}
		if err := r.takeCosts(ctx, j.underlay, round, costs); err != nil {
			return rep, err
		}
		r.left.count(j.slots(), time.Since(start), r.plan)
	}
	for _, s := range stands {
		for _, l := range s.lines {
			rep.Rows = append(rep.Rows, newRowReport(l.row.name, l.rounds, l.errs))
		}
	}
	rep.addRatios(reference)
	for _, t := range costs {
		for i := range t.checks {
			t.checks[i].judge()
		}
		r.checks = append(r.checks, t.checks...)
	}
	return rep, nil
}
