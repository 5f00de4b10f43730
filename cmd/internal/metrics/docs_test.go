package metrics

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/status"
)

// TestDocumented: docs/metrics.md has each metric in the table of those with the label network, or of those without, and none that is not one.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("`(overlayd_\\w+)`").FindAllStringSubmatch(string(text), -1)
	if len(names) < 40 {
		t.Errorf("docs/metrics.md has the metrics %q", names)
	}
	families := map[string]bool{"overlayd_probe_rtt_seconds": true}
	for _, f := range newCollector(nil, PeersOn).families {
		families[prefix+f.name] = slices.Contains(f.labels, network)
	}
	ofNetwork, ofDaemon, found := strings.Cut(string(text), "\n### Metrics of the daemon\n")
	for name, has := range families {
		if in := map[bool]string{true: ofNetwork, false: ofDaemon}[has]; !found || !strings.Contains(in, "`"+name+"`") {
			t.Errorf("%s, with a network: %v, is not in that table", name, has)
		}
	}
	d := sample(3)
	d.Warnings = append(d.Warnings, status.Warning{ID: "not_ready", State: status.NotReady})
	for _, n := range names {
		if all := scrape(t, d, PeersOn); !strings.Contains(all, "\n# TYPE "+n[1]+" ") {
			t.Errorf("there is no metric %s", n[1])
		}
	}
}
