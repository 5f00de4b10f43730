// Package statustext prints how a daemon is, for people: the verdict first, then each network, and what to do last. It only
// formats: what to make of a status is decided where that is made (status.Judge).
package statustext

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
)

// maxRows is how many peers are listed unless all are asked for.
const maxRows = 50

// maxText bounds a text of the daemon, in bytes.
const maxText = 2048

// printer prints one status.
type printer struct {
	*bufio.Writer
	now  time.Time
	wide bool
}

// Print prints a status; wide has every peer, and more of each.
func Print(w io.Writer, d status.Daemon, wide bool) error {
	p := printer{bufio.NewWriter(w), d.At, wide}
	fmt.Fprintln(p, verdict(d))
	for i := range d.Networks {
		p.network(&d.Networks[i])
	}
	if d.LeftOut > 0 {
		fmt.Fprintf(p, "\n%d more peers and entries are not shown: there are too many\n", d.LeftOut)
	}
	p.warnings(d.Warnings)
	return p.Flush()
}

// Brief prints the verdict alone.
func Brief(w io.Writer, d status.Daemon) error {
	_, err := fmt.Fprintln(w, verdict(d))
	return err
}

// verdict is the verdict in one line. That of a healthy daemon says of how many peers.
func verdict(d status.Daemon) string {
	text := safe(d.Verdict.String())
	if d.Verdict.State != status.Healthy {
		return text
	}
	peers := 0
	for i := range d.Networks {
		peers += len(d.Networks[i].Peers)
	}
	switch {
	case len(d.Networks) == 0:
		return text + ": there is no network to serve"
	case len(d.Networks) > 1:
		text += fmt.Sprintf(": %d networks,", len(d.Networks))
	default:
		text += ":"
	}
	if peers == 0 {
		return text + " no other node yet"
	}
	return text + " " + count(peers+d.LeftOut, "peer")
}

// network prints one network.
func (p printer) network(n *status.Network) {
	fmt.Fprintln(p)
	if n.Name != "" {
		fmt.Fprintf(p, "network %s\n", safe(n.Name))
	}
	for _, l := range []struct{ key, text string }{
		{"lease", p.lease(n)},
		{"store", p.store(n)},
		{"etcd", p.etcd(n.Etcd)},
		{"dataplane", p.dataplane(n)},
		{"underlay", underlay(n.Underlay)},
		{"parts", parts(n)},
		{"repairs", p.repairs(n)},
		{"traffic", traffic(n)},
	} {
		if l.text != "" {
			fmt.Fprintf(p, "%-10s %s\n", l.key, safe(l.text))
		}
	}
	p.peers(n.Peers)
	p.entries("LEASE NOT USED", n.Rejected)
	if p.wide {
		p.entries("CANNOT BE READ", n.Bad)
	}
}

func (p printer) lease(n *status.Network) string {
	l := n.Lease
	if l == nil {
		return "none"
	}
	var vteps []string
	for _, v := range l.VTEPs {
		text := v.Public.String()
		if v.MAC != "" && p.wide {
			text += " (MAC " + v.MAC + ")"
		}
		vteps = append(vteps, text)
	}
	text := joined(l.Subnets) + " as " + strings.Join(vteps, ", ")
	if !l.Expires.IsZero() {
		text += ", renewed before it ends in " + status.Short(l.Expires.Sub(p.now))
	}
	return text
}

func (p printer) store(n *status.Network) string {
	s := n.Store
	if s == nil {
		return ""
	}
	text := strings.TrimSpace(s.Kind + " " + s.Endpoint)
	if s.Revision > 0 {
		text += fmt.Sprintf(", revision %d", s.Revision)
	}
	if s.LastAnswer.IsZero() {
		return text + ", has not answered yet"
	}
	return text + ", answered " + p.ago(s.LastAnswer)
}

func (p printer) etcd(e *status.Server) string {
	switch {
	case e == nil:
		return ""
	case e.Running:
		return fmt.Sprintf("runs beside this daemon: pid %d, for %s, start %d", e.PID, status.Short(p.now.Sub(e.Since)), e.Starts)
	}
	return "does not run: " + e.Err
}

func (p printer) dataplane(n *status.Network) string {
	if n.SessionStart.IsZero() {
		return ""
	}
	text := cmp.Or(n.Mode, "none")
	if n.VNI > 0 {
		text += fmt.Sprintf(", VNI %d, UDP port %d", n.VNI, n.Port)
	}
	text += fmt.Sprintf(", MTU %d", n.MTU)
	if n.SourceCheck != "" {
		text += ", source check " + n.SourceCheck
	}
	if len(n.Offloads) > 0 {
		text += ", offloads " + strings.Join(n.Offloads, " ")
	}
	text += ", for " + status.Short(p.now.Sub(n.SessionStart))
	if n.Sessions > 1 {
		text += fmt.Sprintf(" (session %d)", n.Sessions)
	}
	return text
}

func underlay(u *status.Underlay) string {
	if u == nil {
		return ""
	}
	text := fmt.Sprintf("%s, MTU %d", u.Interface, u.MTU)
	for _, e := range u.Ends {
		text += ", " + e.Local.String()
		if e.Public != e.Local {
			text += " (published: " + e.Public.String() + ")"
		}
	}
	return text
}

func parts(n *status.Network) string {
	var all []string
	for _, part := range n.Parts {
		all = append(all, part.Name+" "+string(part.State))
	}
	return strings.Join(all, ", ")
}

// repairs are those of the last ten minutes.
func (p printer) repairs(n *status.Network) string {
	var all []string
	for _, part := range n.Parts {
		for _, o := range part.Objects {
			if o.Lately > 0 {
				all = append(all, fmt.Sprintf("%s: %s, last %s", part.Name, count(int(o.Lately), o.Kind), p.ago(o.LastRepair)))
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	return strings.Join(all, "; ") + " (in 10 minutes, of what others had changed)"
}

// traffic is what the dataplane has counted since it was opened.
func traffic(n *status.Network) string {
	if len(n.Counters) == 0 {
		return ""
	}
	text := fmt.Sprintf("sent %s, received %s", volume(n, "tx"), volume(n, "rx"))
	var drops []string
	for name, v := range n.Counters {
		if reason, ok := strings.CutPrefix(name, "drops_"); ok && v > 0 {
			drops = append(drops, fmt.Sprintf("%s %d", reason, v))
		}
	}
	if len(drops) == 0 {
		return text
	}
	slices.Sort(drops)
	return text + ", dropped " + strings.Join(drops, ", ")
}

func volume(n *status.Network, way string) string {
	return fmt.Sprintf("%s (%s)", count(int(n.Counters[way+"_packets"]), "packet"), bytes(n.Counters[way+"_bytes"]))
}

// peers prints a table: what does not work comes first.
func (p printer) peers(peers []controller.PeerStatus) {
	if len(peers) == 0 {
		return
	}
	shown := slices.Clone(peers)
	if !p.wide {
		slices.SortStableFunc(shown, func(a, b controller.PeerStatus) int { return order(a) - order(b) })
		shown = shown[:min(len(shown), maxRows)]
	}
	fmt.Fprintln(p)
	p.table(shown)
	if more := len(peers) - len(shown); more > 0 {
		fmt.Fprintf(p, "… and %s: -o wide lists all, --peer X shows one\n", count(more, "more peer"))
	}
}

func order(s controller.PeerStatus) int {
	if status.Works(s) {
		return 1
	}
	return 0
}

func (p printer) table(peers []controller.PeerStatus) {
	t := tabwriter.NewWriter(p, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tSUBNET\tVTEP\tSTATE\tSINCE\tWHY NOT")
	for _, s := range peers {
		vtep := "-"
		if s.VTEP.IsValid() {
			vtep = s.VTEP.String()
		}
		why := s.Err
		if p.wide && s.Reason != "" {
			why = s.Reason + ": " + s.Err
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", cmp.Or(safe(s.Name), "-"), s.Subnet, vtep, s.State, p.since(s.Since), safe(why))
	}
	t.Flush()
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
	t := tabwriter.NewWriter(p, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\n%s\tOF\tSINCE\tWHY\n", title)
	for _, e := range shown {
		of := "-"
		if e.Node.IsValid() {
			of = e.Node.String()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", safe(e.Key), of, p.since(e.Since), safe(e.Err))
	}
	t.Flush()
	if more := len(all) - len(shown); more > 0 {
		fmt.Fprintf(p, "… and %d more: -o wide lists all\n", more)
	}
}

func (p printer) warnings(all []status.Warning) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintln(p, "\nwarnings")
	for _, w := range all {
		text := w.Text
		if w.Network != "" {
			text = "network " + w.Network + ": " + text
		}
		if !w.Since.IsZero() {
			text += ", for " + status.Short(p.now.Sub(w.Since))
		}
		fmt.Fprintf(p, "  %s\n", safe(text))
		if w.Fix != "" {
			fmt.Fprintf(p, "    next: %s\n", safe(w.Fix))
		}
	}
}

func (p printer) ago(at time.Time) string { return status.Short(p.now.Sub(at)) + " ago" }

func (p printer) since(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return status.Short(p.now.Sub(at))
}

// safe makes a text of the daemon safe for a terminal: some of it comes from other nodes.
func safe(text string) string { return control.Printable(text, maxText) }

func joined[T fmt.Stringer](all []T) string {
	var texts []string
	for _, v := range all {
		texts = append(texts, v.String())
	}
	return strings.Join(texts, ", ")
}

// count is a number with its noun.
func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// bytes is a number of bytes in the unit that fits.
func bytes(n uint64) string {
	value, unit := float64(n), 0
	for value >= 1000 && unit < 5 {
		value, unit = value/1000, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %cB", value, "kMGTP"[unit-1])
}
