package statuspage

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control/controller"
)

// cell is one peer in the matrix.
type cell struct {
	Class string // ok, warn, bad or unknown: its colour
	Sign  string // the same for those who see no colours
	Name  string
	RTT   string // and loss
	Title string // all that is known, and what to do
}

// cells returns the peers of a network: one square each.
func cells(n status.Network) []cell {
	peers := n.AllPeers()
	all := make([]cell, len(peers))
	for i := range peers {
		all[i] = cellOf(&peers[i])
	}
	return all
}

func cellOf(p *status.Peer) cell {
	c := cell{Name: cmp.Or(p.Name, p.Subnet.String())}
	switch {
	case p.State == controller.PeerFailed || p.State == controller.PeerRefused || p.Probe != nil && p.Probe.State == status.ProbeDown:
		c.Class, c.Sign = "bad", "✗"
	case !p.Works():
		c.Class, c.Sign = "warn", "!"
	case p.Probe == nil || p.Probe.State == status.ProbeUnknown:
		c.Class, c.Sign = "unknown", "?"
	default:
		c.Class, c.Sign = "ok", "✓"
	}
	lines := []string{fmt.Sprintf("%s %s", p.Title(), p.State)}
	if p.VTEP.IsValid() {
		lines = append(lines, "VTEP "+p.VTEP.String())
	}
	if r := p.Probe; r != nil {
		if r.RTTMicros > 0 {
			c.RTT = fmt.Sprintf("%.2f ms", float64(cmp.Or(r.SmoothMicros, r.RTTMicros))/1000)
		}
		if r.Lost > 0 {
			c.RTT = strings.TrimSpace(fmt.Sprintf("%s %d %% lost", c.RTT, 100*r.Lost/max(r.Tries, 1)))
		}
	}
	if _, why, fix := p.Why(); why != "" {
		if lines = append(lines, why); fix != "" {
			lines = append(lines, "next: "+fix)
		}
	}
	c.Title = strings.Join(lines, "\n")
	return c
}
