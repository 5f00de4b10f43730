package etcdchild

import (
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/child"
)

// TestIsDamaged: data are moved aside only if they are to blame.
func TestIsDamaged(t *testing.T) {
	for _, c := range []struct {
		reason string
		times  int
		want   bool
	}{{Damaged, 1, true}, {Full, 9, false}, {"", 9, false}, {child.ReasonLimits, 9, false}, {child.ReasonCrash, 2, false}, {child.ReasonCrash, 3, true}} {
		if got := isDamaged(&child.Error{Reason: c.reason}, c.times); got != c.want {
			t.Errorf("%q, %d times: %v", c.reason, c.times, got)
		}
	}
	if isDamaged(nil, 0) {
		t.Error("the first start")
	}
}
