// Command long runs the tests that take longer the more one wants to know: soak and
// chaos tests, every fuzz target (fuzz.go) and repetitions with the race detector. Each is a
// row (rows.go). It draws rows by a seed until the given time is spent, or runs them all:
//
//	go run ./bench/long --time 15m --seed 7
//	go run ./bench/long --time all
//	go run ./bench/long --time all --only '^(drift|disks)'
//
// It prints the seed. The same seed and time draw the same rows in the same order,
// and every test gets the seed too (-shuffle, OVERLAYD_SEED).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "long:", err)
		os.Exit(1)
	}
}

// run parses the flags and runs the rows that they draw.
func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("long", flag.ContinueOnError)
	length := flags.String("time", "15m", "how long all rows may take, or all")
	only := flags.String("only", "", "regular expression: the rows whose names it matches")
	seed := flags.Uint64("seed", 0, "repeat the run of this seed; 0 chooses one")
	if err := flags.Parse(args); err != nil {
		return err
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("parse --only=%q: %w", *only, err)
	}
	if *seed == 0 {
		*seed = uint64(rand.Uint32())
	}
	all, err := rows(".")
	if err != nil {
		return err
	}
	total := len(all)
	chosen := slices.DeleteFunc(all, func(r row) bool { return !wanted.MatchString(r.name) })
	if len(chosen) == 0 {
		return fmt.Errorf("--only=%q matches no row", *only)
	}
	drawn := slices.DeleteFunc(chosen, func(r row) bool {
		why := r.missing()
		if why != "" {
			fmt.Fprintf(out, "left out: %s: %s\n", r.name, why)
		}
		return why != ""
	})
	if *length != "all" {
		limit, err := time.ParseDuration(*length)
		if err != nil {
			return fmt.Errorf("parse --time: %w", err)
		}
		drawn = draw(drawn, limit, *seed)
	}
	fmt.Fprintf(out, "seed %d, %d of %d rows\n", *seed, len(drawn), total)
	return runAll(ctx, out, drawn, *seed)
}

// draw shuffles the rows by the seed and returns those that fit the limit, in that order.
func draw(all []row, limit time.Duration, seed uint64) (drawn []row) {
	rng := rand.New(rand.NewPCG(seed, 0))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, r := range all {
		if r.takes <= limit {
			limit -= r.takes
			drawn = append(drawn, r)
		}
	}
	return drawn
}

// runAll runs the rows one after the other and names those that failed.
func runAll(ctx context.Context, out io.Writer, drawn []row, seed uint64) error {
	var errs []error
	for i, r := range drawn {
		fmt.Fprintf(out, "== %d/%d %s (about %s)\n", i+1, len(drawn), r.name, r.takes)
		cmd := exec.CommandContext(ctx, "go", r.command(seed)...)
		cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGINT) }
		cmd.WaitDelay = 30 * time.Second
		cmd.Env = append(os.Environ(), fmt.Sprintf("OVERLAYD_SEED=%d", seed))
		cmd.Env = append(cmd.Env, r.env...)
		cmd.Stdout, cmd.Stderr = out, out
		began := time.Now()
		err := cmd.Run()
		if ctx.Err() != nil {
			return fmt.Errorf("stopped in %s: %w", r.name, context.Cause(ctx))
		}
		fmt.Fprintf(out, "== %s: %s\n", r.name, time.Since(began).Round(time.Second))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", r.name, err))
		}
	}
	if errs != nil {
		return fmt.Errorf("%d of %d rows failed with seed %d:\n%w", len(errs), len(drawn), seed, errors.Join(errs...))
	}
	return nil
}
