package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTable(t *testing.T) {
	u := twoRows().Underlays[0]
	want := strings.TrimLeft(`
|              |     TCP, 1 stream, Gbit/s | TCP, 8 streams, Gbit/s |       UDP, 64 bytes, kpps | UDP, 1400 bytes, kpps |
|--------------|--------------------------:|-----------------------:|--------------------------:|----------------------:|
| kernel vxlan | 11.00 (10.00–12.00) 1.00× |                      – | 250.2 (200.5–300.0) 1.00× |                     – |
| nebula       |                2.75 0.25× |                      – |                         – |                     – |
`, "\n")
	if diff := cmp.Diff(want, u.table(groups()[0])); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTextTellsWhatANumberNeeds(t *testing.T) {
	text := twoRows().text()
	for _, part := range []string{
		"`compare --quick`, 2026-11-20", "AMD EPYC, 2 CPUs, Linux 6.18", "load average 0.1 0.2 0.3 before, 1 1 1 after",
		"median of 2 rounds (min–max), ratio to kernel vxlan", "underlay: default (veth as the kernel makes it)",
		"- nebula: round 2: TCP 1: it stalled", "- vxlan: Linux 6.18; as flannel makes it",
		"- flanneld: missing: no flanneld on this machine", "65.0 (60.0–70.0)",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
}

func TestTitleNamesTheFeatures(t *testing.T) {
	u := underlayReport{Name: "wire", Features: "tso off"}
	if got := u.title(); got != "wire (ethtool -K tso off)" {
		t.Errorf("got %q", got)
	}
}

// TestMetricsAreDistinct: a key that is used twice would show the other's figure.
func TestMetricsAreDistinct(t *testing.T) {
	seen := make(map[string]bool)
	for _, g := range groups() {
		for _, m := range g.metrics {
			if seen[m.key] || m.title == "" || m.meaning == "" {
				t.Errorf("metric %+v: used before, or not explained", m)
			}
			seen[m.key] = true
		}
	}
}
