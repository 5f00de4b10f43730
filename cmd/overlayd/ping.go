package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/cmd/internal/probe"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
)

const longPing = `Asks one peer by ICMP echo: through the overlay with small packets and with those of the overlay's MTU
that nobody may fragment, an address behind it, and its underlay address. It says which way packets go,
what works, and what to do if something does not.

PEER is its name, subnet, VTEP or an address in its subnet, as overlayd status -o wide lists them. It
needs CAP_NET_RAW, or a place in sysctl net.ipv4.ping_group_range.

Exit codes: 0 the peer answers through the overlay, with full packets too; 1 it does not; 2 a wrong flag or
an unknown peer; 3 no daemon.`

// newPingCommand makes `overlayd ping`.
func newPingCommand() *cobra.Command {
	var count int
	cmd := &cobra.Command{
		Use:               "ping PEER [flags]",
		Short:             "Ask one peer whether it answers, and which way packets go",
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
				r, err := probe.Ask(ctx, question(&d.Networks[i], &list.Peers[j], count))
				if err == nil {
					err = printPing(w, &d.Networks[i], &list.Peers[j], r)
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

// question is what is asked of a peer.
func question(n *status.Network, p *status.Peer, count int) probe.Question {
	q := probe.Question{Subnet: p.Subnet, VTEP: p.VTEP, MTU: n.MTU, Tunnel: n.VNI > 0, Port: n.Port, Count: count}
	if n.Lease != nil {
		i := slices.IndexFunc(n.Lease.Subnets, func(own netip.Prefix) bool { return own.Addr().Is4() == p.Subnet.Addr().Is4() })
		if i >= 0 {
			q.From = n.Lease.Subnets[i].Addr()
		}
	}
	if n.Underlay != nil {
		q.UnderMTU = n.Underlay.MTU
		i := slices.IndexFunc(n.Underlay.Ends, func(e status.End) bool { return e.Local.Is4() == p.VTEP.Is4() })
		if i >= 0 {
			q.Local = n.Underlay.Ends[i].Local
		}
	}
	return q
}

// printPing prints a line for each kind of request, and what they tell.
func printPing(w io.Writer, n *status.Network, p *status.Peer, r *probe.Result) error {
	way := fmt.Sprintf("through VXLAN to %s, UDP port %d", p.VTEP, n.Port)
	if p.State == controller.PeerDirect || n.VNI == 0 {
		way = fmt.Sprintf("by a direct route to %s", p.VTEP)
	}
	text := fmt.Sprintf("%s %s\n", control.Printable(p.Title(), 128), way)
	for _, l := range r.Lines {
		if l.Sent == 0 {
			continue
		}
		what := "underlay"
		switch {
		case l.Hop:
			what = "behind it"
		case l.Overlay:
			what = "overlay"
		}
		text += fmt.Sprintf("%-9s  %-15s  %4d bytes  %s\n", what, l.To, l.Size, answersOf(&l))
	}
	switch {
	case r.Err == "":
		text += string(r.State) + "\n"
	default:
		text += fmt.Sprintf("%s: %s\n  next: %s\n", r.State, r.Err, r.Fix)
	}
	_, err := io.WriteString(w, text)
	return err
}

// answersOf says how requests of one kind were answered.
func answersOf(l *probe.Line) string {
	if len(l.RTTs) == 0 {
		switch {
		case l.PathMTU > 0:
			return fmt.Sprintf("too large: a router says that the path takes %d", l.PathMTU)
		case l.Err != nil:
			return l.Err.Error()
		}
		return "no answer"
	}
	var sum time.Duration
	for _, rtt := range l.RTTs {
		sum += rtt
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return fmt.Sprintf("%d of %d answered, %.2f ms (%.2f to %.2f)", len(l.RTTs), l.Sent, ms(sum/time.Duration(len(l.RTTs))), ms(slices.Min(l.RTTs)), ms(slices.Max(l.RTTs)))
}
