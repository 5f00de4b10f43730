package node

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/parts"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// TestRefusal: a config that could not be carried is tried again, and another at once.
func TestRefusal(t *testing.T) {
	c := control.Network{EnableIPv4: true}
	r := refusal{c, parts.ErrUnfit, time.Now()}
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

// TestPause: a session that ends because something has changed is followed by another at once, unless
// it was short; any other end is waited after, longer each time it comes soon.
func TestPause(t *testing.T) {
	const short, while, long = 10 * time.Millisecond, 10 * time.Second, time.Hour
	changed, other := control.ErrNetworkChanged, errors.New("broken")
	for _, c := range []struct {
		name   string
		lasted time.Duration
		errs   []error
		want   time.Duration // of the last pause, before jitter
	}{
		{"changed", while, []error{changed}, 0},
		{"changed each time", while, []error{changed, changed, changed}, 0},
		{"changed to and fro", short, []error{changed, changed, changed}, 2 * time.Second},
		{"underlay", while, []error{errUnderlayChanged}, 0},
		{"broken once", while, []error{other}, 500 * time.Millisecond},
		{"broken again", while, []error{other, other, other}, 2 * time.Second},
		{"broken after long", long, []error{other, other, other}, 500 * time.Millisecond},
		{"broken for long", short, slices.Repeat([]error{other}, 20), 30 * time.Second},
		{"broken, then changed", while, []error{other, other, changed, other}, 500 * time.Millisecond},
	} {
		n := newTestDaemon(false).newNetwork("")
		again := pace.Backoff{Low: 500 * time.Millisecond, High: 30 * time.Second}
		var got time.Duration
		for _, err := range c.errs {
			got = n.pause(&again, c.lasted, err)
		}
		if got < c.want*3/4 || got > c.want*5/4 {
			t.Errorf("%s: %s, want about %s", c.name, got, c.want)
		}
	}
}

// TestUnderlayChangeClosesStore: its connections would be from an address that is gone.
func TestUnderlayChangeClosesStore(t *testing.T) {
	for _, err := range []error{control.ErrNetworkChanged, errUnderlayChanged} {
		n := newTestDaemon(false).newNetwork("")
		s := &closingStore{}
		n.store = s
		n.pause(&pace.Backoff{}, time.Minute, err)
		if want := err == errUnderlayChanged; s.closed != want || (n.store == nil) != want {
			t.Errorf("%v: closed %v, want %v", err, s.closed, want)
		}
	}
}

// closingStore is a store that is only closed.
type closingStore struct {
	control.Store
	closed bool
}

func (s *closingStore) Close() error { s.closed = true; return nil }

// TestPauseOfOverlay: an overlay that worked is opened again at once, however often that happens; one that
// does not work is tried again every other second at the latest, and that is logged once.
func TestPauseOfOverlay(t *testing.T) {
	d := newTestDaemon(false)
	var log logBuffer
	d.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	n := d.newNetwork("")
	again := pace.Backoff{Low: 500 * time.Millisecond, High: 30 * time.Second}
	broken := func(lasted time.Duration) error {
		return fmt.Errorf("session: %w", overlayError{errors.New("device deleted"), lasted})
	}
	for range 20 {
		if got := n.pause(&again, 5*time.Second, broken(5*time.Second)); got != 0 {
			t.Errorf("after 5 s: %s", got)
		}
	}
	for i := range 20 {
		// Before it was opened, the session may have waited for a config.
		if got := n.pause(&again, time.Minute, broken(time.Duration(i%2)*10*time.Millisecond)); got == 0 || got > 2*time.Second {
			t.Errorf("in vain: %s", got)
		}
	}
	if got := n.pause(&again, time.Minute, errors.New("store")); got > 700*time.Millisecond {
		t.Errorf("another fault: %s", got)
	}
	if log.count("starting it again") != 21 || log.count("trying again until") != 1 {
		t.Errorf("log:\n%s", log.text())
	}
}
