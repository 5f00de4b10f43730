package status

import (
	"slices"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control/controller"
)

// TestTotals: what counts is added up, by part and kind; what is of now is not.
func TestTotals(t *testing.T) {
	var sum Totals
	at := time.Unix(1, 0)
	for _, r := range []Repairs{{Part: "a", Kind: "x", Count: 2, Last: at}, {Part: "a", Kind: "y"}, {Part: "b", Kind: "x", Count: 1, Last: at},
		{Part: "a", Kind: "x", Count: 3, Last: at.Add(1)}} {
		sum.Repaired(r)
	}
	want := []Repairs{{Part: "a", Kind: "x", Count: 5, Last: at.Add(1)}, {Part: "b", Kind: "x", Count: 1, Last: at}}
	if !slices.Equal(sum.Repairs, want) {
		t.Errorf("got %+v", sum.Repairs)
	}
	sum.Control = controller.Stats{Leases: 3, Peers: 2, Syncs: 4}
	if got := sum.Past().Control; got != (controller.Stats{Syncs: 4}) {
		t.Errorf("without a session: %+v", got)
	}
}
