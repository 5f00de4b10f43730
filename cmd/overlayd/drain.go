package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/node"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
)

// drainTimeout bounds how long drain waits for the daemon to give its lease back.
const drainTimeout = 15 * time.Second

// newDrainCommand makes `overlayd drain`. It has the daemon's flags, in case none runs.
func newDrainCommand() *cobra.Command {
	o := new(flags.Flags)
	var to string
	cmd := &cobra.Command{
		Use:   "drain [flags]",
		Short: "Give this host's subnet back, or let the kernel forward, and stop the daemon",
		Long: `Gives the lease back, so that another node can have the subnet at once, and stops the
daemon that has the same --subnet-file or serves one of --networks. Without these, if no
daemon has the default --subnet-file, it is the one that serves networks in --subnet-dir;
with other flags, --subnet-dir has to be given for that. If no daemon runs, drain itself
gives the lease back to the store; for that give it the daemon's flags.

While the store does not answer, the daemon goes on: it forwards packets, tries to give the
lease back, and stops when it has. drain itself waits for 15 s.

With --to=kernel the lease, the subnet and its file stay. The kernel's vxlan device
takes the place of the userspace dataplane and forwards from then on. The pods stay
connected until flanneld, or an overlayd, starts on this host and adopts the device.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Complete(cmd.Flags(), os.LookupEnv); err != nil {
				return usageError{err}
			}
			if err := chooseDaemon(o, cmd.Flags()); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), drainTimeout)
			defer cancel()
			o.Etcd.Quiet = true
			switch to {
			case "":
				d, err := node.Drain(ctx, daemonConfig(o))
				if errors.Is(err, node.ErrNotStopped) {
					return whyNotDrained(cmd.Context(), o, d.PID, err)
				}
				if err != nil {
					return err
				}
				return printDrained(cmd.OutOrStdout(), d, o.Network.SubnetDir)
			case modeKernel:
				pid, err := node.DrainToKernel(ctx, daemonConfig(o))
				if err != nil {
					return err
				}
				return printHandedOver(cmd.OutOrStdout(), pid)
			}
			return usagef("--to: %q: want %s", to, modeKernel)
		},
	}
	o.Register(cmd.Flags())
	cmd.Flags().StringVar(&to, "to", "", "kernel: keep the lease and let the kernel forward")
	return cmd
}

// whyNotDrained asks the daemon why it has not stopped. late is what Drain says.
func whyNotDrained(ctx context.Context, o *flags.Flags, pid int, late error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	at := admin.Path(o.Network.SubnetFile)
	if o.Network.Several() {
		at = admin.PathIn(o.Network.SubnetDir)
	}
	d, err := admin.NewClient(at).Status(ctx)
	if err != nil {
		return late
	}
	for _, n := range d.Networks {
		if n.Store != nil && !n.Store.Connected {
			return fmt.Errorf("the daemon (pid %d) cannot give its lease back yet: %w; it goes on trying, forwards packets meanwhile, and stops when it has given the lease back: %s",
				pid, node.ErrStoreAway, n.Store.Err)
		}
	}
	return late
}

// chooseDaemon has drain mean the daemon that serves networks in --subnet-dir, if that is given or nothing is, and no daemon has the
// subnet file. f is complete.
func chooseDaemon(o *flags.Flags, f *pflag.FlagSet) error {
	if o.Network.Several() || f.Changed("subnet-file") {
		return nil
	}
	given := false
	f.VisitAll(func(flag *pflag.Flag) { given = given || flag.Changed && flag.Name != "to" })
	if given && !f.Changed("subnet-dir") {
		return nil
	}
	_, held, err := nodefile.Holder(o.Network.SubnetFile)
	if err != nil || held {
		return err
	}
	_, served, err := nodefile.FindDaemon(nodefile.SubnetFilesIn(o.Network.SubnetDir))
	o.Network.Watch = len(served) > 0
	return err
}

// printHandedOver prints what drain did with --to=kernel. pid is that of the daemon, 0 if none was
// running.
func printHandedOver(w io.Writer, pid int) (err error) {
	if pid == 0 {
		_, err = fmt.Fprintln(w, "the kernel forwards; no daemon was running")
		return err
	}
	_, err = fmt.Fprintf(w, "the kernel forwards, the lease stays; the daemon (pid %d) has stopped\n", pid)
	return err
}

// printDrained prints what drain did, in a sentence for each network.
func printDrained(w io.Writer, d node.Drained, subnetDir string) (err error) {
	if d.PID != 0 {
		_, err = fmt.Fprintf(w, "lease given back; the daemon (pid %d) has stopped\n", d.PID)
		return err
	}
	if len(d.Leases) == 0 {
		_, err = fmt.Fprintf(w, "no daemon has served such networks from %s: nothing to give back\n", subnetDir)
		return err
	}
	for _, l := range d.Leases {
		if l.Network != "" {
			fmt.Fprintf(w, "%s: ", l.Network)
		}
		if len(l.Subnets) == 0 {
			_, err = fmt.Fprintf(w, "no daemon is running and %s has no lease: nothing to give back\n", l.Public[0])
			continue
		}
		_, err = fmt.Fprintf(w, "lease on %s given back; no daemon was running\n", strings.Join(l.Subnets, ", "))
	}
	return err
}
