package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/dataplane/kernel"
)

func newCleanupCommand() *cobra.Command {
	o := new(options)
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything of overlayd from this host: devices, routes, subnet file",
		Long: `Removes the overlay devices, routes, nexthops, neighbours and FDB entries that
overlayd made in this network namespace, and the subnet file. Doing it twice is
no error. The lease stays until it expires (see overlayd drain), and so does the
data directory of an embedded etcd, which belongs to the cluster.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.subnetFile == "" {
				return usagef("--subnet-file: \"\": want a path")
			}
			return cleanup(o.subnetFile, func(what string) { fmt.Fprintln(cmd.OutOrStdout(), "removed", what) })
		},
	}
	cmd.Flags().StringVar(&o.subnetFile, "subnet-file", defaultSubnetFile, "subnet file of the daemon")
	return cmd
}

// cleanup removes all it can, even where it returns an error, and says what.
func cleanup(subnetFile string, removed func(what string)) error {
	claim, err := takeLock(subnetFile)
	if other := new(runningError); errors.As(err, &other) {
		return fmt.Errorf("overlayd (pid %d) is running: stop it first", other.pid)
	}
	// A lock file that cannot be made says that no daemon could make one either.
	defer claim.release()
	gone, err := kernel.Cleanup()
	for _, what := range gone {
		removed(what)
	}
	for _, path := range []string{subnetFile, lockPath(subnetFile)} {
		rerr := os.Remove(path)
		if rerr == nil && path == subnetFile {
			removed(path)
		}
		if rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}
