// Command overlayd is a VXLAN overlay daemon: it takes a lease on a subnet of
// the overlay, watches everybody else's, and makes every other subnet reachable,
// by the kernel's vxlan device or by forwarding packets itself.
//
// One file per subcommand, and one per group of flags. To follow a lease through the daemon read
// daemon.go, the life of the process; network.go, that of one overlay network in it;
// session.go, what is done with one network config on one underlay; overlay.go, the dataplane with
// rules and routes; and package control from there. networks.go serves several, changes.go
// says when a session must end. This file holds the only os.Exit of the program.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// The exit codes besides 0. A supervisor need not restart after exitUsage.
const (
	exitFailure = 1 // something on this machine or in the network is not as needed
	exitUsage   = 2 // a flag, an environment variable or a local file is wrong
)

// usageError marks an error that the caller of the program has to mend.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	// With the first signal the default handling is back, so that a second one kills.
	context.AfterFunc(ctx, stop)
	defer stop()

	root := newRootCommand()
	root.SetArgs(normalizeArgs(root, args))
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.As(err, new(usageError)):
		fmt.Fprintf(os.Stderr, "overlayd: %v\nRun 'overlayd --help' for the flags.\n", err)
		return exitUsage
	default:
		fmt.Fprintf(os.Stderr, "overlayd: %v\n", err)
		return exitFailure
	}
}
