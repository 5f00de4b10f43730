package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// options are the flags.
type options struct {
	rounds   int
	budget   time.Duration
	only     *regexp.Regexp
	output   string
	overlayd string
	before   string // an earlier overlayd; "": none
	tiers    []tier
}

// The two sizes of a run.
const (
	fullRounds, fullBudget   = 5, 9 * time.Minute
	quickRounds, quickBudget = 1, 70 * time.Second
)

func parseOptions(args []string) (o options, err error) {
	f := flag.NewFlagSet("compare", flag.ContinueOnError)
	var only string
	quick := f.Bool("quick", false, "one round in about two minutes, to see that everything works")
	f.IntVar(&o.rounds, "rounds", 0, fmt.Sprintf("rounds over all rows (default %d, with --quick %d)", fullRounds, quickRounds))
	f.DurationVar(&o.budget, "budget", 0, fmt.Sprintf("time for all rows, divided among them and the rounds (default %s, with --quick %s); attacks take 75 s for each round besides, memory two minutes in all", fullBudget, quickBudget))
	f.StringVar(&only, "only", "", "regular expression: measure only these of <underlay>/<row> attack/<overlay> and memory/<daemon>, such as '^default/.*userspace' or '^attack/'; the reference always is")
	f.StringVar(&o.output, "o", "", "file to write all figures to, as JSON")
	f.StringVar(&o.overlayd, "overlayd", "bin/overlayd", "the overlayd to measure")
	f.StringVar(&o.before, "before", "", "an earlier overlayd: its rows end in \", before\", and overlayd has to reach 0.97 of them")
	o.tiers = tiers()
	f.Func("tier", "<name>=<flags of overlayd>: measure the userspace dataplane with these flags as well; repeatable", func(s string) error {
		name, flags, ok := strings.Cut(s, "=")
		if !ok || name == "" || flags == "" {
			return errors.New("want <name>=<flags>, such as no-gro=--debug-offloads=-udp-gro")
		}
		o.tiers = append(o.tiers, tier{name, strings.Fields(flags)})
		return nil
	})
	f.SetOutput(io.Discard) // main prints the error
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		f.SetOutput(os.Stdout)
		f.Usage()
		return o, err
	case err != nil:
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return o.complete(*quick, only)
}

// complete fills in what was not given and checks the rest.
func (o options) complete(quick bool, only string) (_ options, err error) {
	rounds, budget := fullRounds, fullBudget
	if quick {
		rounds, budget = quickRounds, quickBudget
	}
	if o.rounds == 0 {
		o.rounds = rounds
	}
	if o.budget == 0 {
		o.budget = budget
	}
	if o.rounds < 1 || o.rounds > 1000 {
		return o, fmt.Errorf("--rounds: %d: want 1 to 1000", o.rounds)
	}
	if o.budget < 0 {
		return o, fmt.Errorf("--budget: %s: want more than 0", o.budget)
	}
	if only != "" {
		re, err := regexp.Compile(only)
		if err != nil {
			return o, fmt.Errorf("--only: %w", err)
		}
		o.only = re
	}
	if o.before != "" {
		if o.before, err = filepath.Abs(o.before); err != nil { // hosts have directories of their own
			return o, fmt.Errorf("--before: %w", err)
		}
	}
	o.overlayd, err = filepath.Abs(o.overlayd)
	return o, err
}
