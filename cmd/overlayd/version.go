package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set at link time (Makefile); it is empty after a plain `go build`.
var version string

// newVersionCommand makes `overlayd version`. It prints what --version prints, on standard output.
func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionText())
			return err
		},
	}
}

// versionText names the program, its version, and what it was built with and for.
func versionText() string {
	v := version
	if info, ok := debug.ReadBuildInfo(); ok && v == "" {
		v = info.Main.Version
	}
	return fmt.Sprintf("overlayd %s %s %s/%s", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
