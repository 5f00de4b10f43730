// Package statustext prints how a daemon is, for people: the verdict first, then each network, and what to do last. It only
// formats: package status decides what to make of a status (status.Judge).
package statustext

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
)

// maxText bounds a text of the daemon, in bytes.
const maxText = 2048

// printer prints one status.
type printer struct {
	*bufio.Writer
	now  time.Time
	wide bool
}

func newPrinter(w io.Writer, now time.Time, wide bool) printer {
	return printer{bufio.NewWriter(w), now, wide}
}

// Print prints a status; wide has every peer, and more of each.
func Print(w io.Writer, d status.Daemon, wide bool) error {
	p := newPrinter(w, d.At, wide)
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
	return text + " " + count(peers+d.PeersLeftOut, "peer")
}

// warnings prints what is wrong, and what to do.
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
