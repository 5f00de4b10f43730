package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/control"
)

// drainTimeout bounds how long drain waits for the daemon to give its lease back.
const drainTimeout = 15 * time.Second

func newDrainCommand() *cobra.Command {
	o := new(options)
	cmd := &cobra.Command{
		Use:   "drain [flags]",
		Short: "Give this host's subnet back, then stop the daemon",
		Long: `Gives the lease back, so that others may have the subnet at once, and stops the
daemon that runs with the same --subnet-file, or serves one of --networks. Where none
runs, the lease of this host is given back by way of the store; that takes the daemon's
flags.`,
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
	files := []string{o.subnetFile}
	if o.several() {
		if files = o.networkFiles(); len(files) == 0 {
			return "no daemon has served such networks from " + o.subnetDir + ": nothing to give back", nil
		}
	}
	pid, held, err := holderOf(files)
	switch {
	case err != nil:
		return "", err
	case len(held) > 0:
		return drainDaemon(ctx, pid, held)
	case o.several():
		return drainNetworks(ctx, o, files)
	}
	return drainStore(ctx, o, "")
}

// networkFiles are the subnet files of the networks of --networks, without which of all, that
// a daemon has served.
func (o *networkOptions) networkFiles() []string {
	return slices.DeleteFunc(subnetFilesIn(o.subnetDir), func(file string) bool {
		name := strings.TrimSuffix(filepath.Base(file), ".env")
		return len(o.networks) > 0 && !slices.Contains(o.networks, name)
	})
}

// holderOf finds the daemon of these subnet files, and which of them it holds: none, if none
// is running. With several daemons it is an error, for only one can have been meant.
func holderOf(files []string) (pid int, held []string, err error) {
	for _, file := range files {
		now, is, err := running(file)
		switch {
		case err != nil:
			return 0, nil, fmt.Errorf("find the daemon: %w", err)
		case is && now == 0:
			return 0, nil, errors.New("the daemon runs in another pid namespace: run overlayd drain there, as by docker exec")
		case is && len(held) > 0 && now != pid:
			return 0, nil, fmt.Errorf("two daemons are running, of %s (pid %d) and %s (pid %d): say which with --networks", held[0], pid, file, now)
		case is:
			pid, held = now, append(held, file)
		}
	}
	return pid, held, nil
}

// drainDaemon has the daemon give back its leases, on the subnets of these files.
func drainDaemon(ctx context.Context, pid int, files []string) (string, error) {
	if err := unix.Kill(pid, unix.SIGUSR1); err != nil {
		return "", fmt.Errorf("signal the daemon (pid %d): %w", pid, err)
	}
	for _, file := range files {
		for {
			now, held, err := running(file)
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
		if _, err := os.Stat(file); err == nil {
			return "", fmt.Errorf("the daemon (pid %d) has stopped without giving its lease back: run overlayd drain again, with its flags", pid)
		}
	}
	return fmt.Sprintf("lease given back; the daemon (pid %d) has stopped", pid), nil
}

// drainNetworks gives back the leases in several networks of a host whose daemon does not run.
func drainNetworks(ctx context.Context, o *options, files []string) (string, error) {
	var said []string
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".env")
		text, err := drainStore(ctx, o, name)
		if err != nil {
			return strings.Join(said, "\n"), fmt.Errorf("network %s: %w", name, err)
		}
		said = append(said, name+": "+text)
	}
	return strings.Join(said, "\n"), nil
}

// drainStore gives back the lease in a network of a host whose daemon does not run.
func drainStore(ctx context.Context, o *options, name string) (string, error) {
	d := &daemon{options: o, log: o.logger(), health: newHealth()}
	n := d.newNetwork(name)
	if err := n.openStore(ctx); err != nil {
		return "", err
	}
	defer n.closeStore()
	config, err := n.store.Network(ctx)
	if err != nil && !errors.Is(err, control.ErrNoNetwork) && !errors.As(err, new(*control.NetworkError)) {
		return "", err
	}
	if err := n.chooseUnderlay(ctx, config); err != nil {
		return "", err
	}
	if n.file, err = claimNode(n.subnetFile); err != nil { // no daemon starts meanwhile
		return "", err
	}
	defer n.release()
	public := n.iface.Underlays(config.EnableIPv4, config.EnableIPv6)[0].Public
	if s, ok := n.store.(control.LiveNodeFinder); ok {
		id, host, err := s.LiveNode(ctx, public)
		if err != nil {
			return "", err
		}
		if id != "" && id != n.file.id {
			return "", fmt.Errorf("a daemon on %s that publishes %s is alive, or was seconds ago: drain it with its own --subnet-file", host, public)
		}
	}
	given, err := releaseOf(ctx, n.store, n.node)
	if err != nil {
		return "", err
	}
	if err := os.Remove(n.subnetFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if len(given) == 0 {
		return fmt.Sprintf("no daemon is running and %s has no lease: nothing to give back", public), nil
	}
	return fmt.Sprintf("lease on %s given back; no daemon was running", strings.Join(given, ", ")), nil
}
