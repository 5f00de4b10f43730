package control

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestBackoffDoublesUpToHigh(t *testing.T) {
	b := backoff{low: 100 * time.Millisecond, high: time.Second}
	for _, want := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
		want *= time.Millisecond
		if got := b.next(); got < want*3/4 || got > want*5/4 {
			t.Errorf("delay %v, want about %v", got, want)
		}
	}
	b.reset()
	if got := b.next(); got > 125*time.Millisecond {
		t.Errorf("delay %v after reset", got)
	}
}

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
		if b := renewRetry(ttl); b.high != high || b.low > b.high {
			t.Errorf("renewRetry(%v) = %v..%v, want up to %v", ttl, b.low, b.high, high)
		}
	}
}

func TestNoticesSayOnce(t *testing.T) {
	var n notices
	now := time.Unix(0, 0)
	a, b := notice{"a", "1"}, notice{"b", "1"}
	steps := []struct {
		after time.Duration
		in    []notice
		want  int
	}{
		{0, []notice{a}, 1},
		{time.Minute, []notice{a, b}, 1},
		{time.Minute, nil, 0},
		{time.Minute, []notice{a, b}, 0}, // came and went: not news
		{time.Minute, []notice{{"a", "2"}}, 1},
		{noticeRepeat, []notice{a, b}, 2},
	}
	for i, s := range steps {
		now = now.Add(s.after)
		if say, more := n.due(now, s.in); len(say) != s.want || more != 0 {
			t.Errorf("step %d: says %v and %d more, want %d", i, say, more, s.want)
		}
	}
}

func TestNoticesAreBounded(t *testing.T) {
	var n notices
	now := time.Unix(0, 0)
	many := make([]notice, 5000)
	for i := range many {
		many[i].key = fmt.Sprint(i)
	}
	if say, more := n.due(now, many); len(say) != noticeBurst || more != len(many)-noticeBurst {
		t.Errorf("says %d and %d more", len(say), more)
	}
	for i := range 5000 { // one fault whose text never stays the same
		n.due(now.Add(time.Duration(i)), []notice{{"k", fmt.Sprint(i)}})
	}
	if len(n.said) > noticeKept+2 {
		t.Errorf("remembers %d", len(n.said))
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

func TestPauseEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(stop) })
		if pause(t.Context(), time.Hour, stop) {
			t.Error("waited for the hour")
		}
		if !pause(t.Context(), time.Hour, nil) {
			t.Error("did not wait")
		}
	})
}
