package kube

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/overlayd/overlayd/control"
)

// logAgain is how often a failure that lasts is logged.
const logAgain = time.Minute

// failures logs what does not succeed, and that it does again.
type failures struct {
	log *slog.Logger

	mu     sync.Mutex
	logged time.Time // when a failure was last logged
	told   bool      // that was so, and nothing has succeeded since
}

func (f *failures) note(ctx context.Context, what string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case ctx.Err() != nil:
	case err == nil && f.told:
		f.told = false
		f.log.InfoContext(ctx, what+": works again")
	case err != nil && time.Since(f.logged) >= logAgain:
		f.logged, f.told = time.Now(), true
		f.log.WarnContext(ctx, what+": trying again", "err", control.Printable(err.Error(), control.FaultBytes))
	}
}

// newSink makes client-go, which logs each attempt as an error, log to h at level Debug. What it
// logs for its own developers (below level 0) is dropped.
func newSink(h slog.Handler) logr.LogSink { return logr.FromSlogHandler(demoted{h}).GetSink() }

type demoted struct{ slog.Handler }

// Enabled implements slog.Handler.
func (d demoted) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelInfo && d.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle implements slog.Handler.
func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	if !d.Handler.Enabled(ctx, slog.LevelDebug) { // nobody asks Enabled about an error
		return nil
	}
	r.Level = slog.LevelDebug
	return d.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (d demoted) WithAttrs(a []slog.Attr) slog.Handler { return demoted{d.Handler.WithAttrs(a)} }

// WithGroup implements slog.Handler.
func (d demoted) WithGroup(name string) slog.Handler { return demoted{d.Handler.WithGroup(name)} }
