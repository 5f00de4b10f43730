// Package demo shows the overlay at work on one machine: three hosts made of network namespaces, one daemon in
// each, a pod behind each, and what every pair of them measures.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/overlayd/overlayd/bench/testbed"
	"github.com/overlayd/overlayd/cmd/internal/fit"
)

// What the demo makes and measures.
const (
	prefix  = testbed.Prefix("overlayd-demo-")
	network = "10.244.0.0/16"
	hosts   = 3

	pings   = 50               // per pair
	stream  = time.Second      // of TCP per ordered pair of pods
	timeout = 40 * time.Second // for everything but taking it down
)

// Options say what a run does beside the whole demo.
type Options struct {
	Keep    bool // leave the hosts up and print how to enter them
	Cleanup bool // only remove what an earlier run left
}

// Run removes what an earlier run left and, unless that was all, shows a demo. What it does and measures is
// printed to out. It needs root, and fails if another demo runs.
func Run(ctx context.Context, out io.Writer, o Options) error {
	if os.Geteuid() != 0 {
		return errors.New("run as root: the demo makes network namespaces")
	}
	lock, err := prefix.Lock()
	if errors.Is(err, testbed.ErrRunning) {
		return errors.New("another overlayd demo is running on this machine")
	} else if err != nil {
		return err
	}
	defer lock.Close()
	removed, err := prefix.Remove()
	if err != nil {
		return fmt.Errorf("remove what an earlier demo left: %w", err)
	}
	switch {
	case removed != "":
		fmt.Fprintf(out, "Removed what an earlier demo left (%s).\n", removed)
	case o.Cleanup:
		fmt.Fprintln(out, "An earlier demo left nothing.")
	}
	if o.Cleanup {
		return nil
	}
	d := &demo{out: out, start: time.Now()}
	return d.show(ctx, o.Keep)
}

// demo is three hosts on one underlay.
type demo struct {
	out   io.Writer
	start time.Time
	bed   *testbed.Testbed
	hosts []*host
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
	timed, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not done after %s", timeout))
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
	fmt.Fprintf(d.out, "\n%s\n", table(results))
	if err := failure(results); err != nil {
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
	d.step("making %d hosts in network namespaces on one underlay, %s", hosts, testbed.Underlay)
	if d.bed, err = testbed.New(prefix); err != nil {
		return err
	}
	for i := range hosts {
		h, err := d.bed.AddHost()
		if err != nil {
			return err
		}
		want := fit.Userspace
		if i == 0 {
			want = fit.Kernel
		}
		d.hosts = append(d.hosts, &host{Host: h, want: want})
	}
	first := d.hosts[0]
	if err := first.NS.ProbeVXLAN(); err != nil {
		d.step("no kernel vxlan on this machine (%v): %s uses --dataplane=auto", err, first.Name)
		first.want = fit.Auto
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
	d.step("pinging %d pairs, %d times each", len(results), pings)
	testbed.MeasurePing(ctx, results, testbed.Pings{Count: pings, MaxLost: maxLoss * pings / 100})
	d.step("moving TCP between %d pairs of pods, %s each, every byte checked", hosts*(hosts-1), stream)
	testbed.MeasureTCP(ctx, results, stream)
	return results
}
