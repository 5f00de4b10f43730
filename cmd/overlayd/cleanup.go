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
		Use:   "cleanup [flags]",
		Short: "Remove everything of overlayd from this host: devices, routes, subnet file",
		Long: `Removes the overlay devices, routes, nexthops, neighbours and FDB entries that
overlayd made in this network namespace, and the subnet file. Doing it twice is
no error. The lease stays until it expires (see overlayd drain), and so does the
data directory of an embedded etcd, which belongs to the cluster.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := applyEnv(cmd.Flags(), os.LookupEnv); err != nil {
				return usageError{err}
			}
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
	claim, err := claimNode(subnetFile)
	if other := new(runningError); errors.As(err, &other) {
		return fmt.Errorf("overlayd (pid %d) is running with --subnet-file %s: stop it first", other.pid, subnetFile)
	}
	// A file that cannot be made says that no daemon could make it either.
	served, serr := servedDevices()
	if serr != nil || len(served) > 0 {
		claim.release()
		return errors.Join(serr, fmt.Errorf("overlayd is running in this network namespace and serves %v: stop it first", served))
	}
	gone, err := kernel.Cleanup()
	for _, what := range gone {
		removed(what)
	}
	switch rerr := os.Remove(subnetFile); {
	case rerr == nil:
		removed(subnetFile)
	case !errors.Is(rerr, os.ErrNotExist):
		err = errors.Join(err, rerr)
	}
	if claim != nil {
		err = errors.Join(err, claim.remove())
	}
	return err
}
