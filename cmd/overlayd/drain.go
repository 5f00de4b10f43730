package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
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
	pid, held, err := running(o.subnetFile)
	switch {
	case err != nil:
		return "", fmt.Errorf("find the daemon: %w", err)
	case held && pid == 0:
		return "", errors.New("the daemon runs in another pid namespace: run overlayd drain there, as by docker exec")
	case !held:
		return drainStore(ctx, o)
	}
	if err := unix.Kill(pid, unix.SIGUSR1); err != nil {
		return "", fmt.Errorf("signal the daemon (pid %d): %w", pid, err)
	}
	for {
		now, held, err := running(o.subnetFile)
		if err == nil && (!held || now != pid) {
			break
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("the daemon (pid %d) has not stopped within %s: see its log", pid, drainTimeout)
		case <-time.After(20 * time.Millisecond):
		}
	}
	// The daemon removes its subnet file once the lease is given back.
	if _, err := os.Stat(o.subnetFile); err == nil {
		return "", fmt.Errorf("the daemon (pid %d) has stopped without giving its lease back: run overlayd drain again, with its flags", pid)
	}
	return fmt.Sprintf("lease given back; the daemon (pid %d) has stopped", pid), nil
}

// drainStore gives back the lease of a host whose daemon does not run.
func drainStore(ctx context.Context, o *options) (string, error) {
	iface, err := underlay.Select(underlay.Options{Iface: o.iface, IfaceRegex: o.ifaceRegex, CanReach: o.canReach, PublicIP: o.public, IPv4: true})
	if err != nil {
		return "", fmt.Errorf("choose underlay interface: %w", err)
	}
	claim, err := claimNode(o.subnetFile) // no daemon starts meanwhile
	if err != nil {
		return "", err
	}
	defer claim.release()
	store, err := etcd.Open(ctx, o.etcdConfig(o.logger()))
	if err != nil {
		return "", usagef("etcd: %w", err)
	}
	defer store.Close()
	id, name, err := store.LiveNode(ctx, iface.IPv4.Public)
	if err != nil {
		return "", err
	}
	if id != "" && id != claim.id {
		return "", fmt.Errorf("a daemon on %s that publishes %s is alive, or was seconds ago: drain it with its own --subnet-file", name, iface.IPv4.Public)
	}
	given, err := releaseOf(ctx, store, iface.IPv4.Public)
	if err != nil {
		return "", err
	}
	if err := os.Remove(o.subnetFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if len(given) == 0 {
		return fmt.Sprintf("no daemon is running and %s has no lease: nothing to give back", iface.IPv4.Public), nil
	}
	return fmt.Sprintf("lease on %s given back; no daemon was running", strings.Join(given, ", ")), nil
}

// releaseOf gives back every lease that publishes addr and returns their keys.
func releaseOf(ctx context.Context, store control.Store, addr netip.Addr) (given []string, err error) {
	watch, cancel := context.WithCancel(ctx)
	first, ok := <-store.Watch(watch)
	cancel()
	if !ok {
		return nil, errors.New("list leases: the store does not answer: check --etcd-endpoints")
	}
	for _, l := range first.Leases {
		if l.PublicIP != addr {
			continue
		}
		if err := store.Release(ctx, l); err != nil {
			return given, fmt.Errorf("give back %s: %w", l.Key(), err)
		}
		given = append(given, l.Key())
	}
	return given, nil
}
