package probe

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
)

// QuestionOf is what overlayd ping asks of a peer of a network, with count requests of each kind.
func QuestionOf(n *status.Network, p *status.Peer, count int) Question {
	q := Question{Subnet: p.Subnet, VTEP: p.VTEP, MTU: n.MTU, Tunnel: n.VNI > 0, Port: n.Port, Count: count}
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

// Print prints a line for each kind of request to a peer of a network, and what they tell.
func (r *Result) Print(w io.Writer, n *status.Network, p *status.Peer) error {
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
		text += fmt.Sprintf("%-9s  %-15s  %4d bytes  %s\n", what, l.To, l.Size, l.text())
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

// text says how requests of one kind were answered.
func (l *Line) text() string {
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
