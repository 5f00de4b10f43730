package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/cmd/internal/probe"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
)

const longPing = `Asks one peer by ICMP echo, three times: through the overlay with a small packet, then with one of the
overlay's MTU that nobody may fragment, and at its underlay address. It says which way packets go.

PEER is its name, subnet, VTEP or an address in its subnet, as overlayd status -o wide lists them. It
needs CAP_NET_RAW, or a place in sysctl net.ipv4.ping_group_range.

Exit codes: 0 the peer answers through the overlay, with full packets too; 1 it does not; 2 a wrong flag or
an unknown peer; 3 no daemon.`

// newPingCommand makes `overlayd ping`.
func newPingCommand() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:               "ping PEER [flags]",
		Short:             "Ask one peer whether it answers, and which way packets go",
		Long:              longPing,
		ValidArgsFunction: completePeer,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) != 1 || args[0] == "":
				return usagef("want one peer: its name, subnet, VTEP or an address in its subnet")
			case wait <= 0 || wait > time.Minute:
				return usagef("--wait %s: want a time of at most a minute, such as 1s", wait)
			}
			c, err := adminClient(cmd.Flags())
			if err != nil {
				return err
			}
			return ping(cmd.Context(), cmd.OutOrStdout(), c, args[0], wait)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.DurationVarP(&wait, "wait", "W", time.Second, "how long to wait for each answer")
	registerAdmin(f)
	return cmd
}

// ping asks the peers that name means. errUnwell: one of them does not answer as it should.
func ping(ctx context.Context, w io.Writer, c *admin.Client, name string, wait time.Duration) error {
	d, err := c.Status(ctx)
	if err != nil {
		return err
	}
	found, well := 0, true
	for i := range d.Networks {
		n := &d.Networks[i]
		for _, list := range status.FindPeers(d.Networks[i:i+1], name).Networks {
			for j := range list.Peers {
				found++
				ok, err := pingPeer(ctx, w, n, &list.Peers[j], wait)
				if err != nil {
					return err
				}
				well = well && ok
			}
		}
	}
	switch {
	case found == 0:
		return usagef("%q: the daemon knows no such peer: want a node's name, its subnet, its VTEP or an address in its subnet, as overlayd status -o wide lists them", name)
	case !well:
		return errUnwell
	}
	return nil
}

// pingPeer asks one peer and prints a line for each answer. ok: it answers through the overlay.
func pingPeer(ctx context.Context, w io.Writer, n *status.Network, p *status.Peer, wait time.Duration) (ok bool, err error) {
	way := fmt.Sprintf("through VXLAN to %s, UDP port %d", p.VTEP, n.Port)
	if p.State == controller.PeerDirect || n.VNI == 0 {
		way = fmt.Sprintf("by a direct route to %s", p.VTEP)
	}
	base, ok := p.Subnet.Addr(), true
	for _, q := range []struct {
		what     string
		from, to netip.Addr
		size     int
		counts   bool
	}{
		{"small, " + way, ownBase(n, base), base, 0, true},
		{fmt.Sprintf("%d bytes, %s", n.MTU, way), ownBase(n, base), base, n.MTU, true},
		{"small, underlay", netip.Addr{}, p.VTEP, 0, false},
	} {
		if !q.to.IsValid() {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, wait)
		rtt, err := probe.Once(ctx, q.from, q.to, q.size)
		cancel()
		text := fmt.Sprintf("%.2f ms", float64(rtt.Microseconds())/1000)
		if err != nil {
			text, ok = err.Error(), ok && !q.counts
		}
		if errors.Is(err, probe.ErrNoSocket) {
			return false, err
		}
		if _, err := fmt.Fprintf(w, "%s: %s: %s\n", control.Printable(p.Title(), 128), q.what, text); err != nil {
			return false, err
		}
	}
	return ok, nil
}

// ownBase is this host's overlay address of the same family, if it has one.
func ownBase(n *status.Network, to netip.Addr) netip.Addr {
	if n.Lease != nil {
		for _, own := range n.Lease.Subnets {
			if own.Addr().Is4() == to.Is4() {
				return own.Addr()
			}
		}
	}
	return netip.Addr{}
}
