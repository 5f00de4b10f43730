package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// drainTimeout bounds how long drain waits for the daemon to give its lease back.
const drainTimeout = 15 * time.Second

func newDrainCommand() *cobra.Command {
	o := new(options)
	cmd := &cobra.Command{
		Use:   "drain [flags]",
		Short: "Give this host's subnet back, then stop the daemon",
		Long: `Gives the lease back, so that others may have the subnet at once, and stops the
daemon that runs with the same --subnet-file. Where none runs, the lease of this
host is given back by way of the store; that takes the daemon's flags.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(cmd.Flags(), os.LookupEnv); err != nil {
				return usageError{err}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), drainTimeout)
			defer cancel()
			said, err := drain(ctx, o)
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), said)
			}
			return err
		},
	}
	o.register(cmd.Flags())
	return cmd
}

// drain returns what it did, in one sentence.
func drain(ctx context.Context, o *options) (string, error) {
	pid, err := running(o.subnetFile)
	if err != nil {
		return "", fmt.Errorf("find the daemon: %w", err)
	}
	if pid == 0 {
		return drainStore(ctx, o)
	}
	if err := unix.Kill(pid, unix.SIGUSR1); err != nil {
		return "", fmt.Errorf("signal the daemon (pid %d): %w", pid, err)
	}
	for {
		now, err := running(o.subnetFile)
		if err == nil && now != pid {
			return fmt.Sprintf("lease given back; the daemon (pid %d) has stopped", pid), nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("the daemon (pid %d) has not stopped within %s: see its log", pid, drainTimeout)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// drainStore gives back the lease of a host whose daemon does not run.
func drainStore(ctx context.Context, o *options) (string, error) {
	iface, err := underlay.Select(underlay.Options{Iface: o.iface, IfaceRegex: o.ifaceRegex, CanReach: o.canReach, PublicIP: o.public})
	if err != nil {
		return "", fmt.Errorf("choose underlay interface: %w", err)
	}
	store, err := etcd.Open(ctx, o.etcdConfig(o.logger()))
	if err != nil {
		return "", fmt.Errorf("open etcd: %w", err)
	}
	defer store.Close()
	lease, err := leaseOf(ctx, store, iface.Public)
	if err != nil {
		return "", err
	}
	if !lease.Subnet.IsValid() {
		return fmt.Sprintf("no daemon is running and %s has no lease: nothing to give back", iface.Public), nil
	}
	if err := store.Release(ctx, lease); err != nil {
		return "", fmt.Errorf("give back %s: %w", lease.Subnet, err)
	}
	return fmt.Sprintf("lease on %s given back; no daemon was running", lease.Subnet), nil
}

// leaseOf finds the lease that publishes addr; the zero Lease where there is none.
func leaseOf(ctx context.Context, store control.Store, addr netip.Addr) (control.Lease, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	first, ok := <-store.Watch(ctx)
	if !ok {
		return control.Lease{}, errors.New("list leases: the store does not answer: check --etcd-endpoints")
	}
	for _, l := range first.Leases {
		if l.PublicIP == addr {
			return l, nil
		}
	}
	return control.Lease{}, nil
}
