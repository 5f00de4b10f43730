package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/cmd/internal/child"
	"github.com/overlayd/overlayd/cmd/internal/etcdchild"
)

// newEtcdCommand makes `overlayd etcd`, which only the daemon runs.
func newEtcdCommand() *cobra.Command {
	var c etcdchild.Config
	cmd := &cobra.Command{
		Use:    "etcd",
		Short:  "Run the embedded etcd of a daemon, and end with it",
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := etcdchild.Serve(cmd.Context(), c)
			if errors.Is(err, child.ErrNoParent) {
				return usageError{err}
			}
			return err
		},
	}
	cmd.Flags().StringVar(&c.Etcd.Dir, "dir", "", "data directory")
	cmd.Flags().StringVar(&c.Etcd.ListenClient, "listen", "", "URL on which to listen")
	cmd.Flags().StringVar(&c.Etcd.Prefix, "prefix", "", "prefix of the keys that clients may use")
	cmd.Flags().StringVar(&c.PKIDir, "pki-dir", "", "directory of the authority, for https")
	cmd.Flags().BoolVar(&c.Debug, "debug", false, "log debug messages")
	cmd.Flags().BoolVar(&c.SetAside, "set-aside", false, "move the data, which are damaged, aside")
	return cmd
}
