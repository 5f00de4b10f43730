package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/cmd/internal/statustext"
	"github.com/overlayd/overlayd/dataplane/pace"
)

const longStatus = `Prints the state of the daemon on this host. First the verdict: healthy, degraded or not ready, and
why. Then, for each network: lease, store, dataplane, underlay, the parts and what they repaired in
the last ten minutes, and every peer. At the end: what to do.

--subnet-file names the daemon, or --subnet-dir if it serves several networks. status asks it at its
admin socket, <subnet file>.sock or <subnet dir>/overlayd.sock, which root and the group of the
daemon's --admin-group may use.

Exit codes: 0 healthy, 1 degraded or not ready, 2 a wrong flag or an unknown peer, 3 no daemon.`

// statusFlags are the flags of `overlayd status`.
type statusFlags struct {
	output string
	brief  bool
	watch  bool
	wait   time.Duration
	peer   string
}

// newStatusCommand makes `overlayd status`.
func newStatusCommand() *cobra.Command {
	o := new(statusFlags)
	cmd := &cobra.Command{
		Use:   "status [flags]",
		Short: "Show the state of the daemon on this host: verdict, networks, peers, what to do",
		Long:  longStatus,
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			c, err := adminClient(cmd.Flags())
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), cmd.OutOrStdout(), c)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&o.output, "output", "o", "text", "text, wide (every peer, and more of each) or json")
	f.BoolVar(&o.brief, "brief", false, "print the verdict only")
	f.BoolVarP(&o.watch, "watch", "w", false, "print again every two seconds, until a signal")
	f.DurationVar(&o.wait, "wait", 0, "wait until the daemon is healthy, but no longer than this")
	f.StringVar(&o.peer, "peer", "", "show one peer: its name, subnet, VTEP or an address in its subnet; exit code 1 if it cannot be reached")
	registerAdmin(f)
	return cmd
}

// check checks the flags.
func (o *statusFlags) check(cmd *cobra.Command) error {
	switch {
	case o.output != "text" && o.output != "wide" && o.output != "json":
		return usagef("-o %q: want text, wide or json", o.output)
	case cmd.Flags().Changed("wait") && o.wait <= 0:
		return usagef("--wait %s: want a time to wait, such as 30s", o.wait)
	case o.watch && o.wait > 0:
		return usagef("--watch and --wait: give one of them")
	case o.peer != "" && (o.brief || o.wait > 0):
		return usagef("--peer shows one peer: leave out --brief and --wait")
	}
	return nil
}

// errUnwell is the end of a command that has already printed what is wrong.
var errUnwell = errors.New("the daemon is not healthy")

const watchPeriod = 2 * time.Second

// run prints what is asked for, once or again and again.
func (o *statusFlags) run(ctx context.Context, w io.Writer, c *admin.Client) error {
	switch {
	case o.wait > 0:
		return o.waitFor(ctx, w, c)
	case o.watch:
		return o.watchIt(ctx, w, c)
	}
	return o.show(ctx, w, c)
}

// show prints once.
func (o *statusFlags) show(ctx context.Context, w io.Writer, c *admin.Client) error {
	if o.peer != "" {
		return o.showPeer(ctx, w, c)
	}
	d, err := c.Status(ctx)
	if err != nil {
		return err
	}
	return o.print(w, d)
}

// print prints a status. errUnwell: it is not healthy.
func (o *statusFlags) print(w io.Writer, d status.Daemon) (err error) {
	switch {
	case o.output == "json":
		err = o.printJSON(w, d)
	case o.brief:
		err = statustext.Brief(w, d)
	default:
		err = statustext.Print(w, d, o.output == "wide")
	}
	if err == nil && d.Verdict.State != status.Healthy {
		err = errUnwell
	}
	return err
}

// printJSON prints a value, in one line if more are to follow.
func (o *statusFlags) printJSON(w io.Writer, value any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if !o.watch {
		e.SetIndent("", "  ")
	}
	return e.Encode(value)
}

// showPeer prints the peers that o.peer means. errUnwell: one of them cannot be reached.
func (o *statusFlags) showPeer(ctx context.Context, w io.Writer, c *admin.Client) error {
	list, err := c.Peers(ctx, o.peer)
	if err != nil {
		return err
	}
	found, works := 0, true
	for _, n := range list.Networks {
		for i := range n.Peers {
			found++
			works = works && n.Peers[i].Works()
		}
	}
	if found == 0 {
		return unknownPeer("--peer ", o.peer)
	}
	if o.output == "json" {
		err = o.printJSON(w, list)
	} else {
		err = statustext.PrintPeers(w, list, time.Now())
	}
	if err == nil && !works {
		err = errUnwell
	}
	return err
}

// waitFor prints once the daemon is healthy, or how it is when the time is over. A daemon that does not run may start.
func (o *statusFlags) waitFor(ctx context.Context, w io.Writer, c *admin.Client) error {
	d, err := c.Await(ctx, o.wait)
	if err != nil {
		return err
	}
	return o.print(w, d)
}

// watchIt prints again and again until ctx ends. What fails is printed too: a daemon that is restarted comes back.
func (o *statusFlags) watchIt(ctx context.Context, w io.Writer, c *admin.Client) error {
	clear := ""
	if f, ok := w.(*os.File); ok && o.output != "json" && isTerminal(f) {
		clear = "\x1b[H\x1b[2J"
	}
	for {
		if _, err := io.WriteString(w, clear); err != nil {
			return err
		}
		err := o.show(ctx, w, c)
		switch {
		case ctx.Err() != nil:
			return err
		case errors.As(err, new(usageError)), errors.Is(err, unix.EPIPE):
			return err
		case err != nil && !errors.Is(err, errUnwell):
			fmt.Fprintf(os.Stderr, "overlayd: %v\n", err)
		}
		if clear == "" && o.output != "json" && !o.brief {
			fmt.Fprintln(w)
		}
		if !pace.Sleep(ctx, watchPeriod, nil) {
			return err
		}
	}
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
