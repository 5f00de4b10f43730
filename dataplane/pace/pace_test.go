package pace

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestBackoffDoublesUpToHigh(t *testing.T) {
	b := Backoff{Low: 100 * time.Millisecond, High: time.Second}
	for _, want := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
		want *= time.Millisecond
		if got := b.Next(); got < want*3/4 || got > want*5/4 {
			t.Errorf("delay %v, want about %v", got, want)
		}
	}
	b.Reset()
	if got := b.Next(); got > 125*time.Millisecond {
		t.Errorf("delay %v after reset", got)
	}
}

func TestNoticesSayOnce(t *testing.T) {
	var n Notices
	now := time.Unix(0, 0)
	a, b := Notice{"a", "1"}, Notice{"b", "1"}
	steps := []struct {
		after time.Duration
		in    []Notice
		want  int
	}{
		{0, []Notice{a}, 1},
		{time.Minute, []Notice{a, b}, 1},
		{time.Minute, nil, 0},
		{time.Minute, []Notice{a, b}, 0}, // came and went: not news
		{time.Minute, []Notice{{"a", "2"}}, 1},
		{noticeRepeat, []Notice{a, b}, 2},
	}
	for i, s := range steps {
		now = now.Add(s.after)
		if say, more := n.Due(now, s.in...); len(say) != s.want || more != 0 {
			t.Errorf("step %d: says %v and %d more, want %d", i, say, more, s.want)
		}
	}
}

func TestNoticesAreBounded(t *testing.T) {
	var n Notices
	now := time.Unix(0, 0)
	many := make([]Notice, 5000)
	for i := range many {
		many[i].Key = fmt.Sprint(i)
	}
	if say, more := n.Due(now, many...); len(say) != linesBurst || more != len(many)-linesBurst {
		t.Errorf("says %d and %d more", len(say), more)
	}
	for i := range 5000 { // one fault whose text never stays the same
		n.Due(now.Add(time.Duration(i)), Notice{"k", fmt.Sprint(i)})
	}
	if len(n.reported) > noticeKept+2 {
		t.Errorf("remembers %d", len(n.reported))
	}
}

func TestSleepEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(stop) })
		if Sleep(t.Context(), time.Hour, stop) {
			t.Error("waited for the hour")
		}
		if !Sleep(t.Context(), time.Hour, nil) {
			t.Error("did not wait")
		}
	})
}
