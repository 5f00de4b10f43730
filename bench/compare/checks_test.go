package main

import (
	"regexp"
	"testing"
)

func TestChecksText(t *testing.T) {
	good, bad, failed := check{Name: "good", Floor: 0.9}, check{Name: "bad", Floor: 0.9}, check{Name: "failed", Floor: 0.9, Errors: []string{"round 1: it stalled"}}
	good.add(95, 100)
	good.add(92, 100)
	bad.add(5, 10)
	failed.add(1, 1)
	for _, c := range []*check{&good, &bad, &failed} {
		c.judge()
	}
	got := checksText([]check{good, bad, failed})
	for _, want := range []string{`good\s+\|\s+2 \|\s+0.935 \|\s+0.92–0.95 \|\s+0.90 \| PASS`, `bad\s+\|\s+1 \|\s+0.500 .* FAIL`, `failed\s+\|\s+1 \|\s+1.000 .* FAIL`, `- failed: round 1: it stalled`} {
		if !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
}
