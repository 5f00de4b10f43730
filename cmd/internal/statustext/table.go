package statustext

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control/controller"
)

// maxRows is how many peers are listed unless all are asked for.
const maxRows = 50

// PrintPeers prints the peers that somebody has asked for, and all that is known of each.
func PrintPeers(w io.Writer, list status.PeerList, now time.Time) error {
	p := newPrinter(w, now, true)
	for _, n := range list.Networks {
		if len(n.Peers) == 0 {
			continue
		}
		if n.Name != "" {
			fmt.Fprintf(p, "network %s\n", safe(n.Name))
		}
		p.table(n.Peers)
		for i := range n.Peers {
			p.next(&n.Peers[i])
		}
	}
	return p.Flush()
}

// next prints what to do about a peer that does not work.
func (p printer) next(peer *status.Peer) {
	if _, _, fix := peer.Why(); fix != "" && !peer.Works() {
		fmt.Fprintf(p, "  next for %s: %s\n", safe(peer.Title()), safe(fix))
	}
}

// peers prints a table: what does not work comes first.
func (p printer) peers(peers []status.Peer) {
	if len(peers) == 0 {
		return
	}
	shown := peers
	if !p.wide {
		shown = slices.Clone(peers)
		slices.SortStableFunc(shown, func(a, b status.Peer) int { return order(&a) - order(&b) })
		shown = shown[:min(len(shown), maxRows)]
	}
	fmt.Fprintln(p)
	p.table(shown)
	if more := len(peers) - len(shown); more > 0 {
		fmt.Fprintf(p, "… and %s: -o wide lists all, --peer X shows one\n", count(more, "more peer"))
	}
}

func order(p *status.Peer) int {
	if p.Works() {
		return 1
	}
	return 0
}

// table prints peers. It has columns for probes and traffic only if somebody probes, or counts.
func (p printer) table(peers []status.Peer) {
	probed := slices.ContainsFunc(peers, func(p status.Peer) bool { return p.Probe != nil })
	columns := []string{"NODE", "SUBNET", "VTEP", "STATE", "SINCE"}
	if probed {
		columns = append(columns, "ANSWERS", "RTT", "LOSS")
	}
	if probed && p.wide {
		columns = append(columns, "LAST", "FULL MTU", "FORWARDS")
	}
	counted := slices.ContainsFunc(peers, func(p status.Peer) bool { return p.Traffic != nil })
	if counted {
		columns = append(columns, "SENT", "RECEIVED")
	}
	var t table
	t.row(append(columns, "WHY NOT")...)
	for i := range peers {
		t.row(p.row(&peers[i], probed, counted)...)
	}
	t.print(p)
}

// row is a line of the table.
func (p printer) row(s *status.Peer, probed, counted bool) []string {
	vtep := ""
	if s.VTEP.IsValid() {
		vtep = s.VTEP.String()
	}
	cells := []string{safe(s.Name), s.Subnet.String(), vtep, string(s.State), p.since(s.Since)}
	if probed {
		cells = append(cells, p.answers(s.Probe)...)
	}
	if counted {
		cells = append(cells, sentReceived(s.Traffic)...)
	}
	reason, why, _ := s.Why()
	if p.wide && reason != "" {
		why = reason + ": " + why
	}
	return append(cells, safe(why))
}

// answers are the cells of a probe.
func (p printer) answers(r *status.Probe) []string {
	if r == nil {
		r = &status.Probe{State: status.ProbeUnknown}
	}
	rtt, loss := "", ""
	if r.RTTMicros > 0 {
		rtt = fmt.Sprintf("%.2f ms", float64(cmp.Or(r.SmoothMicros, r.RTTMicros))/1000)
	}
	if r.Tries > 0 && r.State != status.ProbeUnknown {
		loss = fmt.Sprintf("%d %%", 100*r.Lost/r.Tries)
	}
	cells := []string{answer(r.State), rtt, loss}
	if !p.wide {
		return cells
	}
	last := ""
	if !r.Last.IsZero() {
		last = p.ago(r.Last)
	}
	mtu := strings.ReplaceAll(r.MTU, "_", " ")
	if r.PathMTU > 0 {
		mtu += fmt.Sprintf(" (path %d)", r.PathMTU)
	}
	return append(cells, last, mtu, r.Forwards)
}

// sentReceived are the cells of what went each way.
func sentReceived(t *status.PeerTraffic) []string {
	if t == nil {
		return []string{"", ""}
	}
	return []string{bytes(t.TxBytes), bytes(t.RxBytes)}
}

// answer says whether a peer answers: what is not known is neither yes nor no.
func answer(s status.ProbeState) string {
	switch s {
	case status.ProbeOK:
		return "yes"
	case status.ProbeDegraded:
		return "in part"
	case status.ProbeDown:
		return "no"
	}
	return "unknown"
}

// entries prints a table of what is not used of the store.
func (p printer) entries(title string, all []controller.EntryStatus) {
	if len(all) == 0 {
		return
	}
	shown := all
	if !p.wide {
		shown = all[:min(len(all), maxRows)]
	}
	fmt.Fprintln(p)
	var t table
	t.row(title, "OF", "SINCE", "WHY")
	for _, e := range shown {
		of := ""
		if e.Node.IsValid() {
			of = e.Node.String()
		}
		if e.Name != "" {
			of = strings.TrimSpace(safe(e.Name) + " " + of)
		}
		t.row(safe(e.Key), of, p.since(e.Since), safe(e.Err))
	}
	t.print(p)
	if more := len(all) - len(shown); more > 0 {
		fmt.Fprintf(p, "… and %d more: -o wide lists all\n", more)
	}
}

// table has columns as wide as their longest cell. An empty cell is a dash, but for the last of a row.
type table [][]string

func (t *table) row(cells ...string) { *t = append(*t, cells) }

// print prints all rows, without spaces at their ends.
func (t *table) print(w io.Writer) {
	var widths []int
	for _, cells := range *t {
		for i, c := range cells[:len(cells)-1] {
			cells[i] = cmp.Or(c, "-")
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cells[i]))
		}
	}
	var line strings.Builder
	for _, cells := range *t {
		line.Reset()
		for i, c := range cells {
			line.WriteString(c)
			if i < len(widths) {
				line.WriteString(strings.Repeat(" ", 2+widths[i]-utf8.RuneCountInString(c)))
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}
