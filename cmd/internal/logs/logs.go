package logs

import (
	"io"
	"log/slog"
)

// Config says how a log is written.
type Config struct {
	JSON    bool         // each line is a JSON object; else it is text
	Journal bool         // each line begins with its priority: see ToJournal
	Level   slog.Leveler // the lowest level that is written; it may change at any time
}

// New returns a log that writes each record to w by one call.
func New(w io.Writer, c Config) *slog.Logger {
	if c.Journal {
		return slog.New(newJournal(w, c))
	}
	return slog.New(c.handler(w))
}

func (c Config) handler(w io.Writer) slog.Handler {
	if c.JSON {
		return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: c.Level, ReplaceAttr: readable})
	}
	return slog.NewTextHandler(w, &slog.HandlerOptions{Level: c.Level})
}
