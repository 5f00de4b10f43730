package metrics

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/status"
)

// TestDocumented: docs/metrics.md has no metric that is not one.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("`(overlayd_\\w+)`").FindAllStringSubmatch(string(text), -1)
	if len(names) < 40 {
		t.Errorf("docs/metrics.md has the metrics %q", names)
	}
	d := sample(3)
	d.Warnings = append(d.Warnings, status.Warning{ID: "not_ready", State: status.NotReady})
	for _, n := range names {
		if all := scrape(t, d, PeersOn); !strings.Contains(all, "\n# TYPE "+n[1]+" ") {
			t.Errorf("there is no metric %s", n[1])
		}
	}
}
