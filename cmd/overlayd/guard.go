package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/dataplane/guard"
)

const longGuard = `Switches off all rules by which overlayd drops packets, or on again, while the daemon goes on: use it
if a wrong rule keeps somebody out, whichever it is. Without an argument it says which of the two it is.

Off removes the tables overlayd-guard-<VNI> of nftables, of all networks: the rules of --source-check
and of --plain-source, those that keep pods and processes from sending in the name of others, and the
limit of floods. It holds until on, or until the daemon starts again; --source-check=off is for longer,
and --plain-source=allow for those rules alone. Without a daemon off removes the tables that one has
left, and on needs one. The userspace dataplane goes on checking what comes encapsulated by
--source-check: that is for pods, and keeps nobody from an address that the host has on the underlay.

Exit codes: 0 done, 1 it failed, 2 a wrong argument, 3 on without a daemon.`

// newGuardCommand makes `overlayd guard`.
func newGuardCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:       "guard [on|off]",
		Short:     "Switch the check of where packets come from off and on, without a restart",
		Long:      longGuard,
		ValidArgs: []string{"on", "off"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && args[0] != "on" && args[0] != "off" {
				return usagef("%q: want on, off or nothing", strings.Join(args, " "))
			}
			c, err := adminClient(cmd.Flags())
			if err != nil {
				return err
			}
			return switchGuard(cmd.Context(), cmd.OutOrStdout(), c, strings.Join(args, ""))
		},
	}
	registerAdmin(cmd.Flags())
	return cmd
}

// switchGuard asks the daemon to switch the guard to a state, or removes what one has left.
func switchGuard(ctx context.Context, w io.Writer, c *admin.Client, to string) error {
	state, err := c.Guard(ctx, to)
	if !errors.Is(err, admin.ErrNoDaemon) || to != "off" {
		if err == nil {
			_, err = fmt.Fprintln(w, "guard "+state)
		}
		return err
	}
	removed, err := guard.Cleanup()
	for _, what := range removed {
		fmt.Fprintln(w, "removed "+what)
	}
	if err == nil {
		_, err = fmt.Fprintln(w, "no daemon runs: the next one that starts has a guard again, unless it has --source-check=off")
	}
	return err
}
