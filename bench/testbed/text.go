package testbed

import (
	"slices"
	"strings"
	"time"
)

// Median sorts v and returns its median; 0 if v is empty.
func Median(v []time.Duration) time.Duration {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// Tail returns the last n lines, indented.
func Tail(text string, n int) string {
	lines := slices.Collect(strings.Lines(text))
	var b strings.Builder
	for _, l := range lines[max(0, len(lines)-n):] {
		b.WriteString("  " + strings.TrimRight(l, "\r\n") + "\n")
	}
	return b.String()
}
