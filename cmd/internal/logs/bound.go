package logs

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	boundSpan = time.Minute
	// boundEach lines of each kind are written in any span, however many lines of other kinds there are.
	boundEach = 2
	// boundAll further lines are written in any span, of all kinds together. There are about twenty kinds that a store can cause, and so
	// some 80 lines: what follows from them, such as repairs, has lines of its own.
	boundAll = 40
	maxKinds = 256 // more are one kind: the texts are this program's, and so they are not
)

// Bound bounds the lines of several kinds together, which each has a bound of its own: those that whoever writes to a store can
// cause. A kind is the text of a line. What is not written is counted, and the number is told a minute later. Nil bounds nothing.
type Bound struct {
	to slog.Handler // of the line that tells the number

	mu    sync.Mutex
	kinds map[string]*window // lines up to boundEach, by kind
	all   *window            // lines beyond boundEach
	held  map[string]int     // lines that were not written, by kind
}

// window has the times of the last lines. Any minute counts: a count that starts again each minute would allow twice as many lines around that moment.
type window struct {
	times []time.Time // the oldest is at next
	next  int
}

func newWindow(lines int) *window { return &window{times: make([]time.Time, lines)} }

// take reports whether there may be another line.
func (w *window) take(now time.Time) bool {
	if now.Sub(w.times[w.next]) < boundSpan {
		return false
	}
	w.times[w.next] = now
	w.next = (w.next + 1) % len(w.times)
	return true
}

// NewBound returns a bound that tells its numbers in log.
func NewBound(log *slog.Logger) *Bound {
	return &Bound{to: log.Handler(), kinds: map[string]*window{}, all: newWindow(boundAll), held: map[string]int{}}
}

// Of returns log with b. All logs that are made of one b, or of such a log, have it in common. Debug messages do not count.
func (b *Bound) Of(log *slog.Logger) *slog.Logger {
	if h, is := log.Handler().(bounded); b == nil || is && h.bound == b {
		return log
	}
	return slog.New(bounded{log.Handler(), b})
}

// take reports whether a line of a kind may be written.
func (b *Bound) take(kind string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.kinds[kind] == nil {
		if len(b.kinds) >= maxKinds {
			kind = ""
		}
		if b.kinds[kind] == nil {
			b.kinds[kind] = newWindow(boundEach)
		}
	}
	if b.kinds[kind].take(now) || b.all.take(now) {
		return true
	}
	if len(b.held) == 0 {
		time.AfterFunc(boundSpan, b.tell)
	}
	b.held[kind]++
	return false
}

// tell writes how many lines were held back.
func (b *Bound) tell() {
	b.mu.Lock()
	held := b.held
	b.held = map[string]int{}
	b.mu.Unlock()
	count := 0
	for _, n := range held {
		count += n
	}
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines about the store held back: too many in one minute", 0)
	r.Add("count", count, "of", strings.Join(slices.Sorted(maps.Keys(held)), "; "))
	_ = b.to.Handle(context.Background(), r) // an error of the log cannot be logged
}

// bounded is the handler of a log with a bound.
type bounded struct {
	slog.Handler
	bound *Bound
}

// Handle implements slog.Handler.
func (h bounded) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo && !h.bound.take(r.Message, time.Now()) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h bounded) WithAttrs(attrs []slog.Attr) slog.Handler {
	return bounded{h.Handler.WithAttrs(attrs), h.bound}
}

// WithGroup implements slog.Handler.
func (h bounded) WithGroup(name string) slog.Handler {
	return bounded{h.Handler.WithGroup(name), h.bound}
}
