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

const longGuard = `Switches all rules that drop packets (the guard) off, or on again, while the daemon runs. Use it if
a rule locks you out: you need not know which one. Without an argument it prints on or off.

off removes the nftables tables overlayd-guard-<VNI> of all networks. They hold the rules of --source-check
and --plain-source, the rules that keep pods and processes from sending in the name of others, and the
limit for floods. The guard stays off until you switch it on or the daemon restarts. To switch it off
for longer, use --source-check=off; to switch off only the rules for plain packets, --plain-source=allow.
The userspace dataplane still applies --source-check to encapsulated packets. That protects pods, and
blocks no packet to the host's own underlay address.

Without a daemon, off removes the tables that a daemon has left, and on fails.

Exit codes: 0 done, 1 failed, 2 a wrong argument, 3 on without a daemon.`

// newGuardCommand makes `overlayd guard`.
func newGuardCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:       "guard [on|off]",
		Short:     "Switch the rules that drop packets off or on, without a restart",
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
