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
	// boundEach lines of each kind are written in a span, however many lines of other kinds there are.
	boundEach = 2
	// boundAll further lines are written in a span, of all kinds together. There are about twenty kinds that a store can cause, and so
	// fewer than 100 lines.
	boundAll = 50
	maxKinds = 256 // more are one kind: the texts are this program's, and so they are not
)

// Bound bounds the lines of several kinds together, which each has a bound of its own: those that whoever writes to a store can
// cause. A kind is the text of a line. What is not written is counted, and the number is told when the minute is over. Nil bounds nothing.
type Bound struct {
	to slog.Handler // of the line that tells the number

	mu    sync.Mutex
	began time.Time      // of the span
	kinds map[string]int // lines in it, by kind
	all   int            // lines in it beyond boundEach
	held  map[string]int // lines that were not written, by kind
}

// NewBound returns a bound that tells its numbers in log.
func NewBound(log *slog.Logger) *Bound {
	return &Bound{to: log.Handler(), kinds: map[string]int{}, held: map[string]int{}}
}

// Of returns log with b. All logs that are made of one b, or of such a log, have it in common. Debug messages do not count.
func (b *Bound) Of(log *slog.Logger) *slog.Logger {
	if b == nil {
		return log
	}
	return slog.New(bounded{log.Handler(), b})
}

// take reports whether a line of a kind may be written.
func (b *Bound) take(kind string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.began) >= boundSpan {
		b.began, b.all = now, 0
		clear(b.kinds)
	}
	if _, known := b.kinds[kind]; !known && len(b.kinds) == maxKinds {
		kind = ""
	}
	b.kinds[kind]++
	switch {
	case b.kinds[kind] <= boundEach:
		return true
	case b.all < boundAll:
		b.all++
		return true
	}
	if len(b.held) == 0 {
		time.AfterFunc(b.began.Add(boundSpan).Sub(now), b.tell)
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
