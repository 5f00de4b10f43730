package control

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestRenewIn(t *testing.T) {
	for _, tt := range []struct{ ttl, margin, want time.Duration }{
		{24 * time.Hour, time.Hour, 23 * time.Hour},
		{time.Hour, time.Hour, 30 * time.Minute},
		{time.Hour, 40 * time.Minute, 30 * time.Minute},
		{10 * time.Second, time.Hour, 5 * time.Second},
		{0, time.Hour, 0},
		{-time.Minute, time.Hour, 0},
	} {
		if got := renewIn(tt.ttl, tt.margin); got > tt.want || got < tt.want*19/20 {
			t.Errorf("renewIn(%v, %v) = %v, want %v less up to 5 %%", tt.ttl, tt.margin, got, tt.want)
		}
	}
	for ttl, high := range map[time.Duration]time.Duration{24 * time.Hour: time.Minute, time.Minute: 3 * time.Second, 0: 100 * time.Millisecond} {
		if b := renewRetry(ttl); b.High != high || b.Low > b.High {
			t.Errorf("renewRetry(%v) = %v..%v, want up to %v", ttl, b.Low, b.High, high)
		}
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"":                       "",
		"plain 10.3.1.0-24 é":    "plain 10.3.1.0-24 é",
		"a\nlevel=INFO msg=fake": `a\nlevel=INFO msg=fake`,
		"\x1b[31m\x00\xff":       `\x1b[31m\x00\xff`,
		"a\u202eb":               `a\u202eb`,
		strings.Repeat("x", 253): strings.Repeat("x", 253),
		strings.Repeat("x", 254): strings.Repeat("x", 253) + "…",
		strings.Repeat("é", 500): strings.Repeat("é", 126) + "…",
	} {
		if got := printable(in); got != want {
			t.Errorf("printable(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestKindOutlastsTheText: endpoints that take turns make one kind of error, other errors one for each text.
func TestKindOutlastsTheText(t *testing.T) {
	unreachable := func(text string) error {
		return fmt.Errorf("read: %w", WithReason(ReasonUnreachable, errors.New(text)))
	}
	if a, b := Kind(unreachable("dial a")), Kind(unreachable("dial b")); a != b || a == "" {
		t.Errorf("kinds %q and %q", a, b)
	}
	if a, b := Kind(errors.New("dial a")), Kind(errors.New("dial b")); a == b {
		t.Errorf("one kind %q of two errors", a)
	}
}

// TestExpiryOfLease: a lease without an end says nothing about it.
func TestExpiryOfLease(t *testing.T) {
	for _, l := range []Lease{{}, {Expires: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}} {
		var b strings.Builder
		slog.New(slog.NewTextHandler(&b, nil)).Info("x", l.expiry(), "y", 1)
		if has := strings.Contains(b.String(), "expires="); has != !l.Expires.IsZero() || !strings.HasSuffix(b.String(), "y=1\n") {
			t.Errorf("%v: %s", l.Expires, b.String())
		}
	}
}
