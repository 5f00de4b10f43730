//go:build !race

package history_test

import (
	"strings"
	"testing"
)

// TestSeededBugs: the checker finds each of the mistakes; with a few histories, the first. The race detector, which would
// slow the search down eightfold, has the same code in TestHistories.
func TestSeededBugs(t *testing.T) {
	seed, w, all := seedOf(t), newWorld(t), bugs()
	if _, many := histories(t); !many {
		all = all[:1]
	}
	for n, b := range all {
		t.Run(strings.ReplaceAll(b.name, " ", "_"), func(t *testing.T) {
			const most = 100 // histories
			ran, found := w.find(t, most*(n+1), most, seed, b)
			if found == "" {
				t.Errorf("not found in %d histories", ran)
			}
			t.Logf("%d histories: %s", ran, found)
		})
	}
}
