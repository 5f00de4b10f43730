package etcdrpc

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/control"
)

// TestSessionsPace: what fails is tried again soon, what fails each time is not listed again and again, and an outage is two lines.
func TestSessionsPace(t *testing.T) {
	type session struct {
		unread bool          // the list fails, at once
		lasts  time.Duration // of the stream
		err    error         // of its end; nil: it is cut
	}
	down, cut, steady := session{unread: true}, session{}, session{lasts: 24 * time.Hour}
	refused := session{unread: true, err: control.ErrUser}
	for name, c := range map[string]struct {
		sessions []session // the last one is repeated
		within   time.Duration
		most     int // lists, and attempts of one, within that
		log      string
	}{
		"one cut":                {[]session{{lasts: time.Minute}, steady}, time.Minute + 63*time.Millisecond, 2, "interrupted"},
		"one cut, seen later":    {[]session{{lasts: time.Minute}, steady}, 2 * time.Minute, 2, "interrupted resumed"},
		"a cut at once":          {[]session{cut, steady}, time.Minute, 2, "interrupted resumed"},
		"cuts after a while":     {[]session{{lasts: 20 * time.Second}}, 51 * time.Second, 3, "interrupted resumed interrupted resumed"},
		"etcd away for a while":  {[]session{down, down, down, down, steady}, 20 * time.Second, 5, "interrupted resumed"},
		"user refused":           {[]session{down, down, refused}, time.Minute, 160, "interrupted interrupted"},
		"etcd away":              {[]session{down}, time.Minute, 160, "interrupted"},
		"no stream lasts":        {[]session{cut}, time.Minute, 40, "interrupted"},
		"each is cut soon":       {[]session{{lasts: 5 * time.Second}}, time.Minute, 13, "interrupted"},
		"no stream after a list": {[]session{steady, cut}, 24*time.Hour + time.Minute, 41, "interrupted"},
		"streams came to lack":   {[]session{down, cut}, time.Minute, 41, "interrupted"},
		"time to read again":     {[]session{{lasts: time.Second, err: ErrRelist}}, time.Minute, 61, ""},
		"read again after a cut": {[]session{cut, {lasts: time.Second, err: ErrRelist}, steady}, time.Minute, 3, "interrupted resumed"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log strings.Builder
				rpc := &Caller{log: slog.New(slog.NewTextHandler(&log, nil))}
				ctx, cancel := context.WithTimeout(t.Context(), c.within)
				defer cancel()
				n := 0
				rpc.Sessions(ctx, "leases", func(ctx context.Context, listed func()) error {
					now := c.sessions[min(n, len(c.sessions)-1)]
					if n++; now.unread {
						return cmp.Or(now.err, errors.New("no answer"))
					}
					listed()
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(now.lasts):
					}
					if now.err == nil {
						now.err = errors.New("stream refused")
					}
					return now.err
				})
				if n > c.most || n < min(c.most, len(c.sessions)) {
					t.Errorf("%d lists in %s, want %d at most", n, c.within, c.most)
				}
				if got := loggedSessions(log.String()); got != c.log {
					t.Errorf("logged %.80q, want %q", got, c.log)
				}
			})
		})
	}
}

// loggedSessions says what lines there are.
func loggedSessions(log string) string {
	var lines []string
	for _, word := range strings.Fields(log) {
		if word, _, _ = strings.Cut(strings.Trim(word, `"`), ":"); word == "interrupted" || word == "resumed" {
			lines = append(lines, word)
		}
	}
	return strings.Join(lines, " ")
}

// TestGapOfSessions: it ends with the list, whenever that is known to be followed.
func TestGapOfSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		rpc := &Caller{log: slog.New(slog.NewTextHandler(&log, nil))}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		n := 0
		rpc.Sessions(ctx, "leases", func(ctx context.Context, listed func()) error {
			if n++; n == 1 {
				return errors.New("no answer")
			}
			time.Sleep(3 * time.Second) // the time that the list takes
			listed()
			<-ctx.Done()
			return ctx.Err()
		})
		if !strings.Contains(log.String(), "gap=3.0") {
			t.Errorf("log:\n%s", log.String())
		}
	})
}
