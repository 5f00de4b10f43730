package node

import (
	"testing"
	"time"

	"github.com/overlayd/overlayd/control"
)

// TestRefusal: a config that could not be carried is tried again, and another at once.
func TestRefusal(t *testing.T) {
	c := control.Network{EnableIPv4: true}
	r := refusal{c, errUnfit, time.Now()}
	if r.of(c) == nil {
		t.Error("the same config is not refused")
	}
	if err := r.of(control.Network{}); err != nil {
		t.Errorf("another config: %v", err)
	}
	if r.at = time.Now().Add(-refusalHolds - time.Second); r.of(c) != nil {
		t.Error("refused for ever")
	}
	if err := (refusal{}).of(control.Network{}); err != nil {
		t.Errorf("without a refusal: %v", err)
	}
}
