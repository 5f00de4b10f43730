package main

import (
	"regexp"
	"testing"
)

// TestCheck: each figure is compared with the one that was taken beside it, and the median tells.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name            string
		figures, beside []float64
		median          float64
		pass            bool
	}{
		{"enough", []float64{89, 178, 80}, []float64{100, 200, 100}, 0.89, true},
		{"the machine gets slower", []float64{90, 45, 9}, []float64{100, 50, 10}, 0.9, true},
		{"too little", []float64{80, 90, 70}, []float64{100, 100, 100}, 0.8, false},
		{"one failed", []float64{0, 90}, []float64{0, 100}, 0.9, true},
		{"nothing", []float64{0}, []float64{0}, 0, false},
	} {
		k := check{Floor: 0.88}
		for i := range c.figures {
			k.add(c.figures[i], c.beside[i])
		}
		if k.judge(); k.Ratio.Median != c.median || k.Pass != c.pass {
			t.Errorf("%s: %+v", c.name, k)
		}
	}
}

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
