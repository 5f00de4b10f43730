package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/bench/testbed"
)

// What the demo makes and measures.
const (
	demoPrefix  = testbed.Prefix("overlayd-demo-")
	demoNetwork = "10.244.0.0/16"
	demoHosts   = 3

	demoPings   = 50               // per pair
	demoStream  = time.Second      // of TCP per ordered pair of pods
	demoTimeout = 40 * time.Second // for everything but taking it down
)

func newDemoCommand() *cobra.Command {
	var keep, cleanup bool
	cmd := &cobra.Command{
		Use:   "demo [--keep | --cleanup]",
		Short: "Show the overlay at work on this machine: three hosts, kernel and userspace",
		Long: `Makes three hosts out of network namespaces on one underlay, runs one overlayd in
each (the first with the kernel's vxlan and an embedded etcd, the others in
userspace), puts a pod behind each, measures every pair, prints a table and takes
everything down again. It needs root, and touches nothing outside its namespaces.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if keep && cleanup {
				return usagef("--keep and --cleanup: give one of them")
			}
			// A terminal that closes and a pipe that breaks must not leave the demo up either.
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGHUP, unix.SIGPIPE)
			defer stop()
			return runDemo(ctx, cmd.OutOrStdout(), keep, cleanup)
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "leave the hosts up and print how to enter them")
	cmd.Flags().BoolVar(&cleanup, "cleanup", false, "only remove what --keep or a crash left")
	return cmd
}

// runDemo removes what an earlier run left and, without cleanup, shows a demo.
func runDemo(ctx context.Context, out io.Writer, keep, cleanup bool) error {
	if os.Geteuid() != 0 {
		return errors.New("run as root: the demo makes network namespaces")
	}
	lock, err := demoPrefix.Lock()
	if errors.Is(err, testbed.ErrRunning) {
		return errors.New("another overlayd demo is running on this machine")
	} else if err != nil {
		return err
	}
	defer lock.Close()
	removed, err := demoPrefix.Remove()
	if err != nil {
		return fmt.Errorf("remove what an earlier demo left: %w", err)
	}
	switch {
	case removed != "":
		fmt.Fprintf(out, "Removed what an earlier demo left (%s).\n", removed)
	case cleanup:
		fmt.Fprintln(out, "An earlier demo left nothing.")
	}
	if cleanup {
		return nil
	}
	d := &demo{out: out, start: time.Now()}
	return d.show(ctx, keep)
}

// demo is three hosts on one underlay.
type demo struct {
	out   io.Writer
	start time.Time
	bed   *testbed.Testbed
	hosts []*demoHost
}

// show builds everything, measures, and takes it down. With keep it leaves up what
// came up, even if a measurement failed.
func (d *demo) show(ctx context.Context, keep bool) (err error) {
	up := false
	defer func() {
		interrupted := ctx.Err() != nil
		if err != nil && !interrupted {
			d.showLogs()
		}
		if keep && up && !interrupted {
			d.showHowToEnter()
			return
		}
		if derr := d.bed.Close(); derr != nil {
			err = errors.Join(err, fmt.Errorf("take the demo down: %w", derr))
		}
		if interrupted {
			err = fmt.Errorf("demo stopped: %w", context.Cause(ctx))
		}
	}()
	timed, cancel := context.WithTimeoutCause(ctx, demoTimeout, fmt.Errorf("not done after %s", demoTimeout))
	defer cancel()
	if err := d.build(); err != nil {
		return err
	}
	if err := d.startDaemons(timed); err != nil {
		return err
	}
	if err := d.addPods(); err != nil {
		return err
	}
	up = true
	results := d.measure(timed)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	fmt.Fprintf(d.out, "\n%s\n", demoTable(results))
	if err := demoFailure(results); err != nil {
		return err
	}
	d.step("everybody reaches everybody")
	return nil
}

// step prints what is being done, with the seconds since the start.
func (d *demo) step(format string, args ...any) {
	fmt.Fprintf(d.out, "%5.1fs  %s\n", time.Since(d.start).Seconds(), fmt.Sprintf(format, args...))
}

// build makes the underlay and the hosts on it.
func (d *demo) build() (err error) {
	d.step("making %d hosts in network namespaces on one underlay, %s", demoHosts, testbed.Underlay)
	if d.bed, err = testbed.New(demoPrefix); err != nil {
		return err
	}
	for i := range demoHosts {
		h, err := d.bed.AddHost()
		if err != nil {
			return err
		}
		want := modeUserspace
		if i == 0 {
			want = modeKernel
		}
		d.hosts = append(d.hosts, &demoHost{Host: h, want: want})
	}
	first := d.hosts[0]
	if err := first.NS.ProbeVXLAN(); err != nil {
		d.step("no kernel vxlan on this machine (%v): %s uses --dataplane=auto", err, first.Name)
		first.want = modeAuto
	}
	return nil
}

func (d *demo) addPods() error {
	for _, h := range d.hosts {
		if err := h.AddPod(); err != nil {
			return fmt.Errorf("%s: %w", h.PodName(), err)
		}
		d.step("%s: %s behind %s", h.PodName(), h.Lease.Pod(), h.Name)
	}
	return nil
}

// measure measures every pair and goes on after one that fails.
func (d *demo) measure(ctx context.Context) []testbed.Result {
	results := testbed.Reach(ctx, d.bed.Pairs())
	d.step("pinging %d pairs, %d times each", len(results), demoPings)
	testbed.MeasurePing(ctx, results, testbed.Pings{Count: demoPings, MaxLost: maxDemoLoss * demoPings / 100})
	d.step("moving TCP between %d pairs of pods, %s each, every byte checked", demoHosts*(demoHosts-1), demoStream)
	testbed.MeasureTCP(ctx, results, demoStream)
	return results
}
