package main

import (
	"fmt"
	"strings"
)

// text is the report for people: Markdown, aligned so that it reads well as it is.
func (r *report) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "`%s`, %s\n", r.Command, r.Start.Format("2006-01-02"))
	fmt.Fprintf(&b, "%s, %d CPUs, %s, %s; load average %s before, %s after; %.0f s\n",
		r.Machine.CPU, r.Machine.CPUs, r.Machine.Kernel, r.Machine.Go, r.Machine.LoadStart, r.Machine.LoadEnd, r.Seconds)
	fmt.Fprintf(&b, "Cells: median of %d rounds (min–max), ratio to %s.\n", r.Rounds, r.Reference)
	for _, u := range r.Underlays {
		for _, g := range groups() {
			fmt.Fprintf(&b, "\n%s; underlay: %s\n\n%s", g.title, u.title(), u.table(g))
		}
		b.WriteString(u.errorList())
	}
	if len(r.Checks) > 0 {
		b.WriteString("\nWhat may cost no more; medians of the ratios\n\n" + checksText(r.Checks))
	}
	if len(r.Memory) > 0 {
		b.WriteString("\nMemory of a daemon with so many peers\n\n" + memoryText(r.Memory))
	}
	b.WriteString("\n" + programList(r.Programs))
	return b.String()
}

func (u *underlayReport) title() string {
	if u.Features == "" {
		return u.Name + " (veth as the kernel makes it)"
	}
	return u.Name + " (ethtool -K " + u.Features + ")"
}

// table is one group of metrics of all rows.
func (u *underlayReport) table(g group) string {
	head := []string{""}
	for _, m := range g.metrics {
		head = append(head, m.title)
	}
	rows := [][]string{head}
	for _, r := range u.Rows {
		line := []string{r.Name}
		for _, m := range g.metrics {
			line = append(line, cell(r.Metrics, m))
		}
		rows = append(rows, line)
	}
	return markdown(rows)
}

func cell(metrics map[string]summary, m metric) string {
	s, ok := metrics[m.key]
	if !ok {
		return "–"
	}
	text := fmt.Sprintf("%.*f", m.digits, s.Median)
	if len(s.Values) > 1 {
		text += fmt.Sprintf(" (%.*f–%.*f)", m.digits, s.Min, m.digits, s.Max)
	}
	if s.Ratio > 0 {
		text += fmt.Sprintf(" %.2f×", s.Ratio)
	}
	return text
}

// markdown puts the first column to the left and the others, figures, to the right.
func markdown(rows [][]string) string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, text := range row {
			widths[i] = max(widths[i], len([]rune(text)), 3)
		}
	}
	var b strings.Builder
	for i, row := range rows {
		for j, text := range row {
			width := widths[j] // in characters, as fmt counts
			if j == 0 {
				width = -width
			}
			fmt.Fprintf(&b, "| %*s ", width, text)
		}
		b.WriteString("|\n")
		if i > 0 {
			continue
		}
		for j, width := range widths {
			rule := strings.Repeat("-", width+1)
			if j == 0 {
				b.WriteString("|" + rule + "-")
			} else {
				b.WriteString("|" + rule + ":")
			}
		}
		b.WriteString("|\n")
	}
	return b.String()
}

func (u *underlayReport) errorList() string {
	var b strings.Builder
	for _, r := range u.Rows {
		for _, e := range r.Errors {
			fmt.Fprintf(&b, "\n- %s: %s", r.Name, e)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return b.String() + "\n"
}

// programList says what was measured, how it was set, and what is missing.
func programList(programs []*program) string {
	var b strings.Builder
	for _, p := range programs {
		b.WriteString("- " + p.text() + "\n")
	}
	return b.String()
}
