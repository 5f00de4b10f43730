package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
)

// board is a store's place for events. It refuses those with the reason refuses, or all if that is "all".
type board struct {
	events  []string
	refuses string
}

var errBoard = errors.New("down")

// Tell implements control.EventTeller.
func (b *board) Tell(_ context.Context, e control.Event) error {
	if b.refuses == "all" || b.refuses == e.Reason {
		return errBoard
	}
	b.events = append(b.events, fmt.Sprint(e.Reason, " ", e.Over))
	return nil
}

// TestEvents: what is wrong is told once, tried again if that fails, and so is its end; one that keeps coming and going is
// told once in a while.
func TestEvents(t *testing.T) {
	e, b := newEvents(), new(board)
	steps := []struct {
		now     map[string]string
		refuses string
		want    []string
	}{
		{map[string]string{"LeaseLost": "a"}, "all", nil},
		{map[string]string{"LeaseLost": "a"}, "all", nil},
		{map[string]string{"LeaseLost": "a"}, "", []string{"LeaseLost false"}}, // at once, when somebody listens again
		{map[string]string{}, "all", nil},
		{map[string]string{}, "", []string{"LeaseLost true"}},
		{map[string]string{"MTUMismatch": "a", "ConfigInvalid": "a"}, "ConfigInvalid", []string{"MTUMismatch false"}}, // the one does not depend on the other
		{map[string]string{"MTUMismatch": "b", "ConfigInvalid": "a"}, "", []string{"ConfigInvalid false"}},
		{map[string]string{"ConfigInvalid": "a"}, "", []string{"MTUMismatch true"}},
		{map[string]string{"MTUMismatch": "c", "ConfigInvalid": "a"}, "", nil}, // it has been told a moment ago
	}
	for i, s := range steps {
		b.events, b.refuses = nil, s.refuses
		err := e.tell(t.Context(), b, s.now)
		if errors.Is(err, errBoard) != (s.refuses != "") || !slices.Equal(b.events, s.want) {
			t.Errorf("step %d: %q, %v; want %q", i, b.events, err, s.want)
		}
	}
}

// TestEventsIn: some warnings, and a config that cannot be used, are events.
func TestEventsIn(t *testing.T) {
	warnings := []status.Warning{{ID: "lease_lost"}, {ID: "peers_path_mtu"}, {ID: "peers_tunnel_blocked"}, {ID: "peers_host_down"}, {ID: "store_unreachable"}}
	got := eventsIn(warnings, fmt.Errorf("wait: %w", &control.NetworkError{Err: errors.New("bad")}))
	want := []string{control.EventConfigInvalid, control.EventLeaseLost, control.EventMTUMismatch, control.EventPeerUnreachable}
	if reasons := slices.Sorted(maps.Keys(got)); !slices.Equal(reasons, want) {
		t.Errorf("%q, want %q", reasons, want)
	}
	if got := eventsIn([]status.Warning{{ID: "config_held", Text: "a"}}, nil); !strings.HasPrefix(got[control.EventConfigInvalid], "a") {
		t.Errorf("of a config that is held: %q", got)
	}
	if got := eventsIn(nil, nil); len(got) > 0 {
		t.Errorf("%q", got)
	}
}
