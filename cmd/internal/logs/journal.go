package logs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// ToJournal reports whether f is the stream to the journal that stream, the value of JOURNAL_STREAM, names by its
// device and inode (systemd.exec(5)). A process that was started by a service, with its output elsewhere, has the
// variable, too.
func ToJournal(f *os.File, stream string) bool {
	var st unix.Stat_t
	if stream == "" || unix.Fstat(int(f.Fd()), &st) != nil {
		return false
	}
	return stream == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// The prefixes of lines by which the journal knows their priority, which it takes out (sd-daemon(3)).
const (
	prefixError   = "<3>"
	prefixWarning = "<4>"
	prefixInfo    = "<6>"
	prefixDebug   = "<7>"
)

// prefixOf returns the prefix of a level.
func prefixOf(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return prefixError
	case l >= slog.LevelWarn:
		return prefixWarning
	case l >= slog.LevelInfo:
		return prefixInfo
	}
	return prefixDebug
}

// Prefixed returns text with the priority of a level in front of each line.
func Prefixed(l slog.Level, text string) string {
	p := prefixOf(l)
	return p + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n"+p) + "\n"
}

// journal has a handler for each prefix.
type journal map[string]slog.Handler

func newJournal(w io.Writer, c Config) journal {
	mu, j := new(sync.Mutex), journal{}
	for _, p := range []string{prefixError, prefixWarning, prefixInfo, prefixDebug} {
		j[p] = c.handler(&prefixer{mu, w, p})
	}
	return j
}

// Enabled implements slog.Handler.
func (j journal) Enabled(ctx context.Context, l slog.Level) bool {
	return j[prefixOf(l)].Enabled(ctx, l)
}

// Handle implements slog.Handler.
func (j journal) Handle(ctx context.Context, r slog.Record) error {
	return j[prefixOf(r.Level)].Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (j journal) WithAttrs(a []slog.Attr) slog.Handler {
	return j.each(func(h slog.Handler) slog.Handler { return h.WithAttrs(a) })
}

// WithGroup implements slog.Handler.
func (j journal) WithGroup(name string) slog.Handler {
	return j.each(func(h slog.Handler) slog.Handler { return h.WithGroup(name) })
}

func (j journal) each(change func(slog.Handler) slog.Handler) journal {
	next := journal{}
	for p, h := range j {
		next[p] = change(h)
	}
	return next
}

// prefixer writes the prefix in front of each record, in one call.
type prefixer struct {
	mu     *sync.Mutex // of all prefixers of one log
	w      io.Writer
	prefix string
}

// Write implements io.Writer.
func (p *prefixer) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.w.Write(append([]byte(p.prefix), b...))
	return max(0, n-len(p.prefix)), err
}
