package main

import (
	"fmt"
	"slices"
	"strings"
)

// check is a figure beside the one that it must not fall far behind: both are taken in every round, one right after the
// other, and what counts is the median of the rounds' ratios.
type check struct {
	Name   string   `json:"name"`
	Ratio  summary  `json:"ratio"`
	Floor  float64  `json:"floor"` // the least ratio that passes
	Errors []string `json:"errors,omitempty"`
	Pass   bool     `json:"pass"`
}

// add notes one round.
func (c *check) add(figure, beside float64) {
	if beside > 0 {
		c.Ratio.Values = append(c.Ratio.Values, figure/beside)
	}
}

// judge says what all rounds came to. A check without a figure, or with an error, does not pass.
func (c *check) judge() {
	s, ok := summarise(c.Ratio.Values)
	c.Ratio, c.Pass = s, ok && s.Median >= c.Floor && len(c.Errors) == 0
}

// cost is two rows of which the first does more for each packet.
type cost struct {
	row, beside string
	floors      map[string]float64 // by metric
}

// costs are what the guard may cost.
func costs() []cost {
	return []cost{
		{"overlayd kernel", "overlayd kernel, no guard", map[string]float64{"tcp1_gbit_s": 0.95, "tcp8_gbit_s": 0.95, "udp64_kpps": 0.88}},
		{"overlayd userspace", "overlayd userspace, no guard", map[string]float64{"tcp1_gbit_s": 0.95, "tcp8_gbit_s": 0.95, "udp64_kpps": 0.95}},
	}
}

// costChecks compares the rows of one underlay by their rounds.
func costChecks(where string, lines []*line) (checks []check) {
	rounds := func(row string) []figures {
		if i := slices.IndexFunc(lines, func(l *line) bool { return l.row.name == row }); i >= 0 {
			return lines[i].rounds
		}
		return nil
	}
	for _, c := range costs() {
		of, beside := rounds(c.row), rounds(c.beside)
		for _, m := range groups()[0].metrics {
			floor, ok := c.floors[m.key]
			if !ok || of == nil || beside == nil {
				continue
			}
			k := check{Name: fmt.Sprintf("%s/%s, by %s: %s", where, c.row, c.beside, m.title), Floor: floor}
			for i := range min(len(of), len(beside)) {
				k.add(of[i][m.key], beside[i][m.key])
			}
			k.judge()
			checks = append(checks, k)
		}
	}
	return checks
}

// checksText is a table of checks, and what went wrong.
func checksText(checks []check) string {
	rows := [][]string{{"", "ratio, median", "min–max", "at least", ""}}
	var errs strings.Builder
	for _, c := range checks {
		verdict := "FAIL"
		if c.Pass {
			verdict = "PASS"
		}
		median, spread := "–", "–"
		if len(c.Ratio.Values) > 0 {
			median, spread = fmt.Sprintf("%.3f", c.Ratio.Median), fmt.Sprintf("%.2f–%.2f", c.Ratio.Min, c.Ratio.Max)
		}
		rows = append(rows, []string{c.Name, median, spread, fmt.Sprintf("%.2f", c.Floor), verdict})
		for _, e := range c.Errors {
			fmt.Fprintf(&errs, "\n- %s: %s", c.Name, e)
		}
	}
	if errs.Len() > 0 {
		errs.WriteString("\n")
	}
	return markdown(rows) + errs.String()
}
