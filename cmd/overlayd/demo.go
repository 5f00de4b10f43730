package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// What the demo makes. Everything that outlives a call bears demoPrefix: by it a
// later run finds what an earlier one left.
const (
	demoPrefix  = "overlayd-demo-"
	demoNetwork = "10.244.0.0/16"
	demoHosts   = 3

	demoReady   = 15 * time.Second // for one daemon to be ready
	demoReach   = 10 * time.Second // for every pair to reach each other after that
	demoPings   = 50               // per pair
	demoStream  = 2 * time.Second  // of TCP per ordered pair of pods
	demoTimeout = 40 * time.Second // for everything but taking it down
)

func newDemoCommand() *cobra.Command {
	var keep, cleanup bool
	cmd := &cobra.Command{
		Use:   "demo [--keep | --cleanup]",
		Short: "Show the overlay at work on this machine: three hosts, kernel and userspace",
		Long: `Makes three hosts out of network namespaces on one underlay, runs one overlayd in
each (the first with the kernel's vxlan and an etcd inside, the others in
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
	cmd.Flags().BoolVar(&keep, "keep", false, "leave the hosts up and say how to enter them")
	cmd.Flags().BoolVar(&cleanup, "cleanup", false, "only remove what --keep or a crash left")
	return cmd
}

// runDemo clears what an earlier run left and, unless that is all, shows a demo.
func runDemo(ctx context.Context, out io.Writer, keep, cleanup bool) error {
	if os.Geteuid() != 0 {
		return errors.New("run as root: the demo makes network namespaces")
	}
	lock, err := lockDemo()
	if err != nil {
		return err
	}
	defer lock.Close()
	removed, err := removeDemo()
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
	if d.dir, err = os.MkdirTemp("", demoPrefix); err != nil {
		return fmt.Errorf("make directory for logs: %w", err)
	}
	return d.show(ctx, keep)
}

// demo is three hosts on one underlay.
type demo struct {
	out   io.Writer
	start time.Time
	dir   string // of logs, subnet files and etcd's data
	lan   *demoNS
	hosts []*demoHost
}

// show builds everything, measures, and takes it down; with keep it leaves up
// what came up, whether or not it worked.
func (d *demo) show(ctx context.Context, keep bool) (err error) {
	up := false
	defer func() {
		interrupted := ctx.Err() != nil
		if err != nil && !interrupted {
			d.showLogs()
		}
		if keep && up && !interrupted {
			d.sayHowToEnter()
			return
		}
		if derr := d.takeDown(); derr != nil {
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

// step says what is being done, with the seconds since the start.
func (d *demo) step(format string, args ...any) {
	fmt.Fprintf(d.out, "%5.1fs  %s\n", time.Since(d.start).Seconds(), fmt.Sprintf(format, args...))
}

// build makes the underlay and the hosts on it.
func (d *demo) build() (err error) {
	d.step("making %d hosts in network namespaces on one underlay, 192.0.2.0/24", demoHosts)
	if d.lan, err = newDemoNS(demoPrefix + "lan"); err != nil {
		return err
	}
	if err := d.lan.addBridge(); err != nil {
		return err
	}
	for i := range demoHosts {
		h := newDemoHost(i+1, d.dir)
		d.hosts = append(d.hosts, h)
		if err := h.join(d.lan); err != nil {
			return fmt.Errorf("host%d: %w", h.num, err)
		}
	}
	first := d.hosts[0]
	if err := first.ns.probeVXLAN(); err != nil {
		d.step("no kernel vxlan on this machine (%v): host1 uses --dataplane=auto", err)
		first.want = modeAuto
	}
	return nil
}

// startDaemons starts the first host, which holds etcd, and then the others.
func (d *demo) startDaemons(ctx context.Context) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	endpoint := fmt.Sprintf("http://%s:2379", d.hosts[0].addr)
	for i, h := range d.hosts {
		args := []string{"--etcd-endpoints", endpoint}
		if i == 0 {
			args = []string{"--etcd-embedded", "--etcd-listen-client-url", endpoint, "--network", demoNetwork}
		}
		d.step("host%d: overlayd --dataplane %s %s", h.num, h.want, strings.Join(args, " "))
		if err := h.startDaemon(exe, args); err != nil {
			return fmt.Errorf("host%d: %w", h.num, err)
		}
		if i == 0 || i == len(d.hosts)-1 {
			if err := d.awaitReady(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitReady waits for the hosts that were started and are not known to be ready.
func (d *demo) awaitReady(ctx context.Context) error {
	for _, h := range d.hosts {
		if h.daemon == nil || h.mode != "" {
			continue
		}
		if err := h.awaitReady(ctx); err != nil {
			return fmt.Errorf("host%d: %w", h.num, err)
		}
		d.step("host%d: ready, has %s, dataplane %s, MTU %d", h.num, h.lease.gateway.Masked(), h.mode, h.lease.mtu)
	}
	return nil
}

func (d *demo) addPods() error {
	for _, h := range d.hosts {
		if err := h.addPod(); err != nil {
			return fmt.Errorf("pod%d: %w", h.num, err)
		}
		d.step("pod%d: %s behind host%d", h.num, h.podAddr(), h.num)
	}
	return nil
}

func (d *demo) sayHowToEnter() {
	last := d.hosts[len(d.hosts)-1]
	fmt.Fprintf(d.out, `
It stays up. The hosts are network namespaces %shost1 to %[2]d, the pods %[1]spod1 to %[2]d:
  ip netns exec %[1]shost1 bash        or, without iproute2: nsenter --net=/run/netns/%[1]shost1
  ip netns exec %[1]spod1 ping %[3]s
Logs and subnet files: %[4]s
Remove it with: overlayd demo --cleanup   (another overlayd demo removes it first, too)
`, demoPrefix, demoHosts, last.podAddr(), d.dir)
}
