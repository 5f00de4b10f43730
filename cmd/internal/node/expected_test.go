package node

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
)

func newTestDaemon(several bool) *Daemon {
	c := Config{Log: slog.New(slog.DiscardHandler), SubnetFile: "unused"}
	if several {
		c.OpenNetworks = OpenNetworks(nil)
	}
	return New(c)
}

// TestReadyOfNetworks: a daemon is not ready before it knows its networks, nor until each is.
func TestReadyOfNetworks(t *testing.T) {
	d := newTestDaemon(true)
	if d.Ready() {
		t.Error("ready before anything is known")
	}
	a := d.newNetwork("a")
	d.expects.complete()
	if d.Ready() {
		t.Error("ready while a is not")
	}
	a.publish(snapshot{ready: time.Now()})
	if !d.Ready() {
		t.Error("not ready when all are")
	}
	b := d.newNetwork("b")
	if d.Ready() {
		t.Error("ready while b is not")
	}
	if got := names(d.Status()); got != "a b" {
		t.Errorf("status of %q", got)
	}
	d.expects.remove(b)
	if !d.Ready() {
		t.Error("not ready when b has gone")
	}
	a.publishNoSession(errUnderlayChanged)
	if got := d.Status(); d.Ready() || got[0].Ready || got[0].Err != errUnderlayChanged.Error() || got[0].V != status.Version {
		t.Errorf("ready after the session of a has ended: %+v", got)
	}
}

// TestWhoMayStillCome: files of the daemon before wait for networks of which the store has not told, not for those whose config cannot be used, or whose
// device is another daemon's.
func TestWhoMayStillCome(t *testing.T) {
	d := newTestDaemon(true)
	if !d.expects.wait() {
		t.Error("before the list of the networks is known")
	}
	a := d.newNetwork("a")
	d.expects.complete()
	for _, c := range []struct {
		fault   error
		claimed bool
		want    bool
	}{
		{nil, false, true}, {errDown, false, true}, {fmt.Errorf("a: %w", control.ErrNoNetwork), false, false}, {errDown, true, false}, {nil, true, false},
		{fmt.Errorf("a: %w", &claim.ServedError{VNI: 1}), false, false},
	} {
		a.claimed.Store(c.claimed)
		if a.publishNoSession(c.fault); d.expects.wait() != c.want {
			t.Errorf("%v, claimed %v: want %v", c.fault, c.claimed, c.want)
		}
	}
}

// TestNetworkThatComesBack: one that has gone does not take its successor from the list.
func TestNetworkThatComesBack(t *testing.T) {
	d := newTestDaemon(true)
	before := d.newNetwork("a")
	after := d.newNetwork("a")
	d.expects.remove(before)
	if got := names(d.Status()); got != "a" {
		t.Errorf("status of %q", got)
	}
	d.expects.remove(after)
	if got := names(d.Status()); got != "" {
		t.Errorf("status of %q", got)
	}
}

// TestReadyOfOne: the one network that has no name is the only one to wait for.
func TestReadyOfOne(t *testing.T) {
	d := newTestDaemon(false)
	n := d.newNetwork("")
	if d.Ready() {
		t.Error("ready at once")
	}
	if n.publish(snapshot{ready: time.Now()}); !d.Ready() {
		t.Error("not ready")
	}
}

func names(all []status.Network) (text string) {
	for i, n := range all {
		if i > 0 {
			text += " "
		}
		text += n.Name
	}
	return text
}
