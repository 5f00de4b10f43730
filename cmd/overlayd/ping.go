package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/cmd/internal/probe"
	"github.com/overlayd/overlayd/cmd/internal/status"
)

const longPing = `Tests one peer by ICMP echo: through the overlay with small packets, and with packets of the overlay's
MTU that must not be fragmented; an address behind the peer; and its underlay address. It prints which
way packets go, what works, and what to do if something does not.

PEER is the peer's name, subnet, VTEP or an address in its subnet, as overlayd status -o wide lists them.
It needs CAP_NET_RAW, or a group in sysctl net.ipv4.ping_group_range.

Exit codes: 0 the peer answers through the overlay, also full packets; 1 it does not; 2 a wrong flag or
an unknown peer; 3 no daemon.`

// newPingCommand makes `overlayd ping`.
func newPingCommand() *cobra.Command {
	var count int
	cmd := &cobra.Command{
		Use:               "ping PEER [flags]",
		Short:             "Test whether one peer answers, and show which way packets go",
		Long:              longPing,
		ValidArgsFunction: completePeer,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) != 1 || args[0] == "":
				return usagef("want one peer: its name, subnet, VTEP or an address in its subnet")
			case count < 1 || count > 1000:
				return usagef("-c %d: want a number from 1 to 1000", count)
			}
			c, err := adminClient(cmd.Flags())
			if err != nil {
				return err
			}
			return ping(cmd.Context(), cmd.OutOrStdout(), c, args[0], count)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVarP(&count, "count", "c", 3, "how many requests of each kind")
	registerAdmin(f)
	return cmd
}

// ping asks the peers that name means. errUnwell: one of them does not answer as it should.
func ping(ctx context.Context, w io.Writer, c *admin.Client, name string, count int) error {
	d, err := c.Status(ctx)
	if err != nil {
		return err
	}
	found, well := 0, true
	for i := range d.Networks {
		for _, list := range status.FindPeers(d.Networks[i:i+1], name).Networks {
			for j := range list.Peers {
				found++
				r, err := probe.Ask(ctx, probe.QuestionOf(&d.Networks[i], &list.Peers[j], count))
				if err == nil {
					err = r.Print(w, &d.Networks[i], &list.Peers[j])
				}
				if err != nil {
					return err
				}
				well = well && r.State == status.ProbeOK
			}
		}
	}
	switch {
	case found == 0:
		return unknownPeer("", name)
	case !well:
		return errUnwell
	}
	return nil
}
