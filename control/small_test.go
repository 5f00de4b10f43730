package control

import (
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
