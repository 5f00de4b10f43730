package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/hostroute"
)

// failing is a dataplane whose Sync fails, and counts how often.
type failing struct {
	dataplane.Dataplane
	err   error
	calls int
}

func (f *failing) Sync(_ context.Context, w dataplane.Wanted) (dataplane.Wanted, error) {
	f.calls++
	return w, f.err
}

// When routing has changed and a peer is refused, that is no reason to try all again for
// ever: the dataplane does. Anything else is, less and less often.
func TestResyncAfterRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		err   error
		calls int
	}{
		"a peer":     {errors.Join(&dataplane.PeerError{Err: errors.New("refused")}), 1},
		"everything": {errors.New("refused"), 2}, // at 0 s and 1 s, and not before 3 s
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			routes, err := hostroute.Open(hostroute.Config{Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			defer routes.Close()
			f := &failing{err: tc.err}
			o := &overlay{Dataplane: f, log: slog.New(slog.DiscardHandler), routes: routes, last: &dataplane.Wanted{}}
			ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
			defer cancel()
			again := make(chan struct{}, 1)
			again <- struct{}{}
			if err := o.resync(ctx, again); err != nil || f.calls != tc.calls {
				t.Errorf("Sync was called %d times (%v), want %d", f.calls, err, tc.calls)
			}
		})
	}
}
