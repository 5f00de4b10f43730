package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
)

// board is a store's place for events. It refuses those with the reason refuses, or all if that is "all".
type board struct {
	events  []string
	text    string // of the last one
	refuses string
}

var errBoard = errors.New("down")

// Tell implements control.EventTeller.
func (b *board) Tell(_ context.Context, e control.Event) error {
	if b.refuses == "all" || b.refuses == e.Reason {
		return errBoard
	}
	b.events = append(b.events, fmt.Sprint(e.Reason, " ", e.Over))
	b.text = e.Text
	return nil
}

// TestEvents: what is wrong is told once, tried again if that fails, and so is its end; one that keeps coming and going is
// told once in a while.
func TestEvents(t *testing.T) {
	e, b := newEvents(), new(board)
	steps := []struct {
		now     []string
		refuses string
		want    []string
	}{
		{[]string{"LeaseLost"}, "all", nil},
		{[]string{"LeaseLost"}, "all", nil},
		{[]string{"LeaseLost"}, "", []string{"LeaseLost false"}}, // at once, when somebody listens again
		{nil, "all", nil},
		{nil, "", []string{"LeaseLost true"}},
		{[]string{"MTUMismatch", "ConfigInvalid"}, "ConfigInvalid", []string{"MTUMismatch false"}}, // the one does not depend on the other
		{[]string{"MTUMismatch", "ConfigInvalid"}, "", []string{"ConfigInvalid false"}},
		{[]string{"ConfigInvalid"}, "", []string{"MTUMismatch true"}},
		{[]string{"MTUMismatch", "ConfigInvalid"}, "", nil}, // it has been told a moment ago
	}
	for i, s := range steps {
		b.events, b.text, b.refuses = nil, "", s.refuses
		now := map[string]trouble{}
		for _, reason := range s.now {
			now[reason] = trouble{"the text", "the text; next: mend it"}
		}
		err := e.tell(t.Context(), b, now)
		if errors.Is(err, errBoard) != (s.refuses != "") || !slices.Equal(b.events, s.want) {
			t.Errorf("step %d: %q, %v; want %q", i, b.events, err, s.want)
		}
		if over := strings.HasPrefix(b.text, "resolved"); over && b.text != "resolved: the text" {
			t.Errorf("step %d: %q; want no advice on what is over", i, b.text)
		}
	}
}

// TestEventsIn: some warnings, and a config that cannot be used, are events. What concerns peers is one if it concerns at least half of them.
func TestEventsIn(t *testing.T) {
	const up, failed, refused = controller.PeerUp, controller.PeerFailed, controller.PeerRefused
	bad := fmt.Errorf("wait: %w", &control.NetworkError{Err: errors.New("bad")})
	for name, c := range map[string]struct {
		peers  []controller.PeerState
		reason string // of those that failed
		held   bool
		lost   controller.Fault // of the lease
		fault  error
		want   []string
	}{
		"nothing":                    {peers: []controller.PeerState{up, up}},
		"the only peer":              {peers: []controller.PeerState{failed}, want: []string{control.EventPeerUnreachable}},
		"half of them":               {peers: []controller.PeerState{failed, up, up, failed}, want: []string{control.EventPeerUnreachable}},
		"one of three":               {peers: []controller.PeerState{failed, up, up}},
		"one of those that are used": {peers: []controller.PeerState{failed, refused, refused}, want: []string{control.EventPeerUnreachable}},
		"narrow":                     {peers: []controller.PeerState{failed, up}, reason: status.ReasonPathMTU, want: []string{control.EventMTUMismatch}},
		"narrow, one of three":       {peers: []controller.PeerState{failed, up, up}, reason: status.ReasonPathMTU},
		"a config that is no config": {fault: bad, want: []string{control.EventConfigInvalid}},
		"the lease is lost":          {lost: controller.Fault{Err: "somebody else has it"}, want: []string{control.EventLeaseLost}},
		"a config that is held":      {held: true, want: []string{control.EventConfigInvalid}},
	} {
		n := status.Network{Ready: true, LeaseFault: c.lost}
		for i, state := range c.peers {
			p := controller.PeerStatus{Subnet: mustPrefix(fmt.Sprintf("10.5.%d.0/24", i)), State: state}
			if state == failed {
				p.Reason, p.Err = c.reason, "no answer"
			}
			n.Peers = append(n.Peers, p)
		}
		if c.held {
			n.ConfigHeld = &status.HeldConfig{Networks: []netip.Prefix{mustPrefix("10.6.0.0/16")}, Why: "it does not fit", Until: time.Now().Add(time.Minute)}
		}
		got := eventsIn(&n, status.Report(status.Process{}, true, []status.Network{n}).Warnings, c.fault)
		if reasons := slices.Sorted(maps.Keys(got)); !slices.Equal(reasons, c.want) {
			t.Errorf("%s: %q, want %q", name, reasons, c.want)
		}
		if held := got[control.EventConfigInvalid]; c.held && (held.text != "it does not fit" || !strings.Contains(held.now, "it is applied in")) {
			t.Errorf("%s: %+v", name, held)
		}
	}
}
