package main

import (
	"fmt"
	"strings"
)

// check is a figure beside the one that it must not fall far behind: both are taken in every round, once or more often, one right after the
// other, and what counts is the median of the ratios.
type check struct {
	Name   string   `json:"name"`
	Ratio  summary  `json:"ratio"`
	Floor  float64  `json:"floor"` // the least ratio that passes
	Errors []string `json:"errors,omitempty"`
	Pass   bool     `json:"pass"`
}

// add notes two figures that were taken one right after the other.
func (c *check) add(figure, beside float64) {
	if beside > 0 {
		c.Ratio.Values = append(c.Ratio.Values, figure/beside)
	}
}

// judge says what all of them came to. A check without a figure, or with an error, does not pass.
func (c *check) judge() {
	s, ok := summarise(c.Ratio.Values)
	c.Ratio, c.Pass = s, ok && s.Median >= c.Floor && len(c.Errors) == 0
}

// checksText is a table of checks, and what went wrong.
func checksText(checks []check) string {
	rows := [][]string{{"", "ratios", "median", "min–max", "at least", ""}}
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
		rows = append(rows, []string{c.Name, fmt.Sprint(len(c.Ratio.Values)), median, spread, fmt.Sprintf("%.2f", c.Floor), verdict})
		for _, e := range c.Errors {
			fmt.Fprintf(&errs, "\n- %s: %s", c.Name, e)
		}
	}
	if errs.Len() > 0 {
		errs.WriteString("\n")
	}
	return markdown(rows) + errs.String()
}
