package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
)

// setupTimeout is how long one candidate may take; setupAtOnce of them are set up at a time.
const (
	setupTimeout = 40 * time.Second
	setupAtOnce  = 3
)

// stand is a candidate that is set up, with what was measured of its rows.
type stand struct {
	pair  *pair
	lines []*line
}

type line struct {
	row    row
	rounds []figures
	errs   []string
	failed bool // nothing could be measured: it is left out of the rounds that remain
}

// setUp sets up all candidates. One that fails is noted as missing.
func (r *run) setUp(ctx context.Context, j job) (stands []*stand, err error) {
	found := make([]*stand, len(j.candidates))
	var group errgroup.Group
	group.SetLimit(setupAtOnce)
	for i, c := range j.candidates {
		group.Go(func() error {
			p, err := r.setUpOne(ctx, j.underlay, c)
			if ctx.Err() != nil {
				if p != nil {
					err = p.close()
				}
				return errors.Join(context.Cause(ctx), err)
			}
			if err != nil {
				r.say("%s: %s: missing: %v", j.underlay.name, c.name, err)
				r.mu.Lock()
				r.program(c.name).Missing = fmt.Sprintf("%s underlay: %v", j.underlay.name, err)
				r.mu.Unlock()
				return nil
			}
			s := &stand{pair: p}
			for _, row := range c.rows {
				s.lines = append(s.lines, &line{row: row})
			}
			found[i] = s
			return nil
		})
	}
	err = group.Wait()
	for _, s := range found {
		if s != nil {
			stands = append(stands, s)
		}
	}
	return stands, err
}

func (r *run) setUpOne(ctx context.Context, u underlay, c candidate) (*pair, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, setupTimeout, fmt.Errorf("not up after %s", setupTimeout))
	defer cancel()
	p, err := newPair(ctx, filepath.Join(r.dir, u.name, c.name), u)
	if err != nil {
		return nil, err
	}
	if err = c.setup(ctx, p); err == nil {
		err = p.reach(ctx)
	}
	if err == nil {
		r.say("%s: %s is up", u.name, c.name)
		return p, nil
	}
	if logs := p.logs(); logs != "" {
		err = fmt.Errorf("%w\n%s", err, logs)
	}
	return nil, errors.Join(err, p.close())
}

// measure measures all rows of a stand once. Only the end of ctx is an error.
func (r *run) measure(ctx context.Context, u underlay, round int, s *stand) error {
	for _, l := range s.lines {
		if l.failed {
			continue
		}
		f, err := s.pair.way(l.row).measure(ctx, r.plan)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for _, h := range s.pair.hosts() {
			err = errors.Join(err, h.check(ctx))
		}
		l.rounds = append(l.rounds, f)
		r.say("%s %d/%d %-32s %s", u.name, round+1, r.rounds, l.row.name, f.text())
		if err != nil {
			l.errs = append(l.errs, fmt.Sprintf("round %d: %v", round+1, err))
			l.failed = len(f) == 0
			r.say("%s: %s: %v", u.name, l.row.name, err)
		}
	}
	return nil
}

// text is one round of one row, for progress.
func (f figures) text() string {
	return fmt.Sprintf("TCP %5.2f %5.2f Gbit/s  UDP %6.1f %6.1f kpps  RTT %6.1f µs  under TCP %6.2f ms  CPU %.3f s/Gbit",
		f["tcp1_gbit_s"], f["tcp8_gbit_s"], f["udp64_kpps"], f["udp1400_kpps"], f["flood_rtt_us"], f["load_rtt_p99_ms"], f["cpu_processes_s_gbit"])
}
