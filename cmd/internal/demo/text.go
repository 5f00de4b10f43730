package demo

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/overlayd/overlayd/bench/testbed"
)

// table is one line per pair, with aligned columns.
func table(results []testbed.Result) string {
	rows := [][]string{{"pair", "dataplanes", "RTT", "Gbit/s", "loss"}}
	for _, r := range results {
		row := []string{r.From + " → " + r.To, r.Path, "–", "–", "–"}
		if r.Ping.RTT > 0 {
			row[2] = fmt.Sprintf("%.3f ms", float64(r.Ping.RTT)/float64(time.Millisecond))
		}
		if r.Gbit > 0 {
			row[3] = fmt.Sprintf("%.2f", r.Gbit)
		}
		switch {
		case r.Ping.Sent > 0:
			row[4] = fmt.Sprintf("%d %%", 100*r.Ping.Lost/r.Ping.Sent)
		case r.Err != nil:
			row[4] = "100 %"
		}
		rows = append(rows, row)
	}
	return alignColumns(rows)
}

// alignColumns aligns the first two columns, text, to the left and the rest,
// numbers, to the right. It counts a column's width in characters, as fmt does.
func alignColumns(rows [][]string) string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, cell := range row {
			if i < 2 {
				fmt.Fprintf(&b, "  %-*s", widths[i], cell)
			} else {
				fmt.Fprintf(&b, "  %*s", widths[i], cell)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// maxLoss is the percentage of pings that a pair may lose: a machine that is
// busy with something else may lose one.
const maxLoss = 10

// failure names every pair that failed; nil if no pair did.
func failure(results []testbed.Result) error {
	var errs []error
	for _, r := range results {
		switch {
		case r.Err != nil:
			errs = append(errs, fmt.Errorf("%s → %s (%s): %w", r.From, r.To, r.Path, r.Err))
		case 100*r.Ping.Lost > maxLoss*r.Ping.Sent:
			errs = append(errs, fmt.Errorf("%s → %s (%s): %d of %d pings were lost", r.From, r.To, r.Path, r.Ping.Lost, r.Ping.Sent))
		}
	}
	if errs == nil {
		return nil
	}
	return fmt.Errorf("%d of %d pairs failed:\n%w", len(errs), len(results), errors.Join(errs...))
}

// logLines is how much of each log a failure shows.
const logLines = 12

// showLogs prints the end of every daemon's log.
func (d *demo) showLogs() {
	for _, h := range d.hosts {
		if logs := h.Logs(logLines); logs != "" {
			fmt.Fprintf(d.out, "\nThe end of the log of %s:\n%s", h.Name, logs)
		}
	}
}

// showHowToEnter prints how to enter the hosts of a demo that stays up.
func (d *demo) showHowToEnter() {
	last := d.hosts[len(d.hosts)-1]
	fmt.Fprintf(d.out, `
It stays up. The hosts are network namespaces %shost1 to %[2]d, the pods %[1]spod1 to %[2]d:
  ip netns exec %[1]shost1 bash        or, without iproute2: nsenter --net=/run/netns/%[1]shost1
  ip netns exec %[1]spod1 ping %[3]s
Logs and subnet files: %[4]s
Remove it with: overlayd demo --cleanup   (another overlayd demo also removes it first)
`, prefix, hosts, last.Lease.Pod(), d.bed.Dir)
}
