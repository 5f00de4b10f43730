//go:build tools

package main

import (
	"os/exec"
	"testing"
)

// TestToolsRunAlerts: Prometheus takes the rules, and each fires when it should, not before, and resolves.
func TestToolsRunAlerts(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"check", "rules", "overlayd.rules.yml"}, {"test", "rules", "overlayd.rules.test.yml"}} {
		cmd := exec.Command("promtool", args...)
		cmd.Dir = "../../deploy/alerts"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
}
