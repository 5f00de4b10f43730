package logs

import (
	"io"
	"log/slog"
	"sync/atomic"
)

// Config says how a log is written.
type Config struct {
	JSON    bool         // each line is a JSON object; else it is text
	Journal bool         // each line begins with its priority: see ToJournal
	Level   slog.Leveler // the lowest level that is written; it may change at any time
}

// New returns a log that writes each record to w by one call.
func New(w io.Writer, c Config) *slog.Logger {
	w = counted{w}
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

// lost counts the records of all logs that could not be written.
var lost atomic.Uint64

// Lost returns how many records this process could not write, because nobody reads its log or the disk is full.
func Lost() uint64 { return lost.Load() }

// counted counts what cannot be written. No log can tell that.
type counted struct{ w io.Writer }

// Write implements io.Writer.
func (c counted) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	if err != nil {
		lost.Add(1)
	}
	return n, err
}
