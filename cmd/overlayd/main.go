// Command overlayd is a VXLAN overlay daemon: it takes a lease on a subnet of the overlay, watches
// the leases of all other nodes, and makes their subnets reachable, either with the kernel's vxlan
// device or by forwarding packets itself.
//
// This package holds what concerns people: one file per subcommand, and exit codes. Below it, in
// cmd/internal, package flags has the flags, fixes says what to do about an error, stores opens the
// stores, and node is what the daemon does: its doc.go tells how to follow a lease through the
// daemon. This file holds the only os.Exit of the program but for that of an etcd which cannot go on
// (package etcdchild).
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/logs"
	"github.com/overlayd/overlayd/cmd/internal/tap"
	"github.com/overlayd/overlayd/control"
)

// The exit codes besides 0. A supervisor need not restart after exitUsage.
const (
	exitFailure  = 1 // this machine or network lacks something
	exitUsage    = 2 // a flag, an environment variable or a local file is wrong
	exitNoDaemon = 3 // no daemon answers
	// exitUnread is what a shell says of a program that SIGPIPE has ended: whoever read its output has gone.
	exitUnread = 128 + int(unix.SIGPIPE)
)

// lastWords is how long the program waits at its end for whoever reads its log.
const lastWords = time.Second

// usageError marks an error that whoever called the program has to correct.
type usageError struct{ error }

// Unwrap lets errors.Is and errors.As see the cause.
func (e usageError) Unwrap() error { return e.error }

// usagef makes a usageError.
func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// asUsage marks an error as one that whoever called has to correct; nil stays nil.
func asUsage(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err}
}

func main() {
	hidePassword()
	os.Exit(run(os.Args[1:]))
}

// run is the whole program except the exit, so that tests can be the program.
func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	// With the first signal the default handling is back, so that a second one kills.
	context.AfterFunc(ctx, stop)
	defer stop()
	defer logs.Stderr.Flush(lastWords)

	root := newRootCommand()
	checkOwn(root)
	args = flags.Normalize(root.Flags(), args)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUnwell), errors.Is(err, tap.ErrSaid): // it was said
		return exitFailure
	case errors.Is(err, tap.ErrUnread):
		return exitUnread
	case errors.Is(err, errBadConfig): // it was said
		return exitUsage
	}
	complain(cmd, args, err)
	switch {
	case errors.As(err, new(usageError)), errors.Is(err, admin.ErrRequest), errors.Is(err, control.ErrCloned): // then the node file is wrong
		return exitUsage
	case errors.Is(err, admin.ErrNoDaemon):
		return exitNoDaemon
	}
	return exitFailure
}
