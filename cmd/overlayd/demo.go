package main

import (
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/demo"
)

// newDemoCommand makes `overlayd demo`.
func newDemoCommand() *cobra.Command {
	var o demo.Options
	cmd := &cobra.Command{
		Use:   "demo [--keep | --cleanup]",
		Short: "Show the overlay at work on this machine: three hosts, kernel and userspace",
		Long: `Makes three hosts out of network namespaces on one underlay, runs one overlayd in
each (the first with the kernel's vxlan and an embedded etcd, the others in
userspace), puts a pod behind each, measures every pair, prints a table and takes
everything down again. It needs root, and touches nothing outside its namespaces.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Keep && o.Cleanup {
				return usagef("--keep and --cleanup: give one of them")
			}
			// A terminal that closes and a pipe that breaks must not leave the demo up either.
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGHUP, unix.SIGPIPE)
			defer stop()
			return demo.Run(ctx, cmd.OutOrStdout(), o)
		},
	}
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "leave the hosts up and print how to enter them")
	cmd.Flags().BoolVar(&o.Cleanup, "cleanup", false, "only remove what --keep or a crash left")
	return cmd
}
