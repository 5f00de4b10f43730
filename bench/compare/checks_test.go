package main

import (
	"regexp"
	"strings"
	"testing"
)

// TestCostChecks: each figure is compared with that of the same round, and the median tells.
func TestCostChecks(t *testing.T) {
	row := func(name string, kpps ...float64) *line {
		l := &line{row: row{name: name}}
		for _, v := range kpps {
			l.rounds = append(l.rounds, figures{"udp64_kpps": v})
		}
		return l
	}
	for _, c := range []struct {
		name        string
		strict, off []float64
		median      float64
		pass        bool
	}{
		{"enough", []float64{89, 178, 80}, []float64{100, 200, 100}, 0.89, true},
		{"the machine gets slower", []float64{90, 45, 9}, []float64{100, 50, 10}, 0.9, true},
		{"too little", []float64{80, 90, 70}, []float64{100, 100, 100}, 0.8, false},
		{"one round failed", []float64{0, 90}, []float64{0, 100}, 0.9, true},
		{"nothing", []float64{0}, []float64{0}, 0, false},
	} {
		checks := costChecks("default", []*line{row("overlayd kernel", c.strict...), row("x"), row("overlayd kernel, no guard", c.off...)})
		var found bool
		for _, k := range checks {
			if !strings.Contains(k.Name, "64 bytes") {
				continue
			}
			found = true
			if k.Ratio.Median != c.median || k.Pass != c.pass || k.Floor != 0.88 {
				t.Errorf("%s: %+v", c.name, k)
			}
		}
		if !found {
			t.Errorf("%s: no check of 64 bytes in %+v", c.name, checks)
		}
	}
	if checks := costChecks("default", []*line{row("overlayd kernel", 1)}); len(checks) > 0 {
		t.Errorf("a row without the other: %+v", checks)
	}
}

// TestCostsNameRows: a row that is renamed loses its check.
func TestCostsNameRows(t *testing.T) {
	rows := map[string]bool{}
	for _, c := range candidates("overlayd", "Linux", tiers()) {
		for _, r := range c.rows {
			rows[r.name] = true
		}
	}
	metrics := meanings()
	for _, c := range costs() {
		if !rows[c.row] || !rows[c.beside] {
			t.Errorf("no rows %q and %q", c.row, c.beside)
		}
		for key := range c.floors {
			if metrics[key] == "" {
				t.Errorf("no metric %q", key)
			}
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
	for _, want := range []string{`good\s+\|\s+0.935 \|\s+0.92–0.95 \|\s+0.90 \| PASS`, `bad\s+\|\s+0.500 .* FAIL`, `failed\s+\|\s+1.000 .* FAIL`, `- failed: round 1: it stalled`} {
		if !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
}
