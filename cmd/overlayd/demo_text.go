package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// demoLease is what a CNI plugin reads from a subnet file.
type demoLease struct {
	gateway netip.Prefix // first address of the subnet, with the subnet's length
	mtu     int
}

func parseDemoLease(text string) (l demoLease, err error) {
	vars := make(map[string]string)
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			vars[k] = v
		}
	}
	if l.gateway, err = netip.ParsePrefix(vars["FLANNEL_SUBNET"]); err != nil || l.gateway.Bits() > 30 {
		return demoLease{}, fmt.Errorf("FLANNEL_SUBNET: %q is no subnet with room for a pod", vars["FLANNEL_SUBNET"])
	}
	if l.mtu, err = strconv.Atoi(vars["FLANNEL_MTU"]); err != nil || l.mtu < 68 || l.mtu > 65535 {
		return demoLease{}, fmt.Errorf("FLANNEL_MTU: %q is no MTU", vars["FLANNEL_MTU"])
	}
	return l, nil
}

// median sorts v. The median of nothing is 0.
func median(v []time.Duration) time.Duration {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// demoTable is one line per pair, with aligned columns.
func demoTable(results []demoResult) string {
	rows := [][]string{{"pair", "dataplanes", "RTT", "Gbit/s", "loss"}}
	for _, r := range results {
		row := []string{r.from + " → " + r.to, r.path, "–", "–", "–"}
		if r.ping.rtt > 0 {
			row[2] = fmt.Sprintf("%.3f ms", float64(r.ping.rtt)/float64(time.Millisecond))
		}
		if r.gbit > 0 {
			row[3] = fmt.Sprintf("%.2f", r.gbit)
		}
		switch {
		case r.ping.sent > 0:
			row[4] = fmt.Sprintf("%d %%", 100*r.ping.lost/r.ping.sent)
		case r.err != nil:
			row[4] = "100 %"
		}
		rows = append(rows, row)
	}
	return alignColumns(rows)
}

// alignColumns puts two columns of text to the left and the rest, numbers, to
// the right. A column's width is counted in characters, as fmt does.
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

// maxDemoLoss is the share of lost pings, in percent, from which on a pair fails:
// a machine that is busy with something else may lose one.
const maxDemoLoss = 10

// demoFailure names every pair that failed; nil if none did.
func demoFailure(results []demoResult) error {
	var errs []error
	for _, r := range results {
		switch {
		case r.err != nil:
			errs = append(errs, fmt.Errorf("%s → %s (%s): %w", r.from, r.to, r.path, r.err))
		case 100*r.ping.lost > maxDemoLoss*r.ping.sent:
			errs = append(errs, fmt.Errorf("%s → %s (%s): %d of %d pings were lost", r.from, r.to, r.path, r.ping.lost, r.ping.sent))
		}
	}
	if errs == nil {
		return nil
	}
	return fmt.Errorf("%d of %d pairs failed:\n%w", len(errs), len(results), errors.Join(errs...))
}

// demoLogLines is how much of each log a failure shows.
const demoLogLines = 12

// showLogs prints the end of every daemon's log.
func (d *demo) showLogs() {
	for _, h := range d.hosts {
		text, err := os.ReadFile(h.logFile())
		if err != nil {
			continue // it was not started
		}
		fmt.Fprintf(d.out, "\nThe end of host%d's log:\n%s", h.num, tail(string(text), demoLogLines))
	}
}

// tail returns the last n lines, indented.
func tail(text string, n int) string {
	lines := slices.Collect(strings.Lines(text))
	var b strings.Builder
	for _, l := range lines[max(0, len(lines)-n):] {
		b.WriteString("  " + strings.TrimRight(l, "\r\n") + "\n")
	}
	return b.String()
}
