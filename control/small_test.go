package control

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

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
		if got := Printable(in, 256); got != want {
			t.Errorf("Printable(%q) = %q, want %q", in, got, want)
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
