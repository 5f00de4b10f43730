package etcdrpc

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/connectivity"
)

// TestChoose: one cluster is kept while anybody of it answers, and another one takes its place at most endpoints at once.
func TestChoose(t *testing.T) {
	const own, other = 1, 2
	seen := func(clusters ...uint64) (all []found) {
		for _, c := range clusters {
			all = append(all, found{cluster: c})
		}
		return all
	}
	for name, c := range map[string]struct {
		was     uint64
		away    time.Duration // others have answered for so long
		answers []found
		settled bool
		want    uint64
		early   bool
	}{
		"nobody yet":                        {answers: nil},
		"most":                              {answers: seen(other, own, own), want: own},
		"two of three":                      {answers: seen(own, own), want: own},
		"one of three":                      {answers: seen(other), early: true},
		"one of three, a while ago":         {answers: seen(other), away: choiceWaits, want: other},
		"one of three, the others are dead": {answers: seen(other), settled: true, want: other},
		"equals":                            {answers: seen(other, own), settled: true, want: other},
		"nobody says":                       {answers: seen(0, 0), settled: true},
		"one says":                          {answers: seen(0, own), settled: true, want: own},
		"in use":                            {was: own, answers: seen(other, other, own), settled: true, want: own},
		"in use and away":                   {was: own, answers: seen(other), settled: true, want: own},
		"in use and away for long":          {was: own, answers: seen(other), away: orphaned, want: other},
		"in use and replaced":               {was: own, answers: seen(other, other), want: other},
		"in use, and nobody answers at all": {was: own, away: orphaned, want: own},
		"in use and away, and nobody says":  {was: own, answers: seen(0, 0, 0), away: orphaned, want: own},
		"a learner of the first":            {answers: []found{{own, errLearner}, {other, nil}}, settled: true, want: other},
		"a learner of the one in use":       {was: own, answers: []found{{own, errLearner}, {other, nil}}, away: orphaned, want: other},
		"learners of most":                  {answers: []found{{own, errLearner}, {own, errLearner}, {other, nil}}, want: other, settled: true},
		"learners of one that serves":       {answers: []found{{other, nil}, {own, errLearner}, {own, nil}}, want: own},
		"one that is slow to say":           {answers: []found{{err: context.DeadlineExceeded}}},
	} {
		now := time.Now()
		m := members{log: slog.New(slog.DiscardHandler), cluster: c.was}
		if c.away > 0 {
			m.since = now.Add(-c.away)
		}
		if got, ok := m.choose(now, c.answers, 3, c.settled); got != c.want || ok == c.early {
			t.Errorf("%s: %d, %v; want %d", name, got, ok, c.want)
		}
	}
}

// TestChooseInTime: only the time counts in which others answer, and nobody of the cluster in use. An endpoint without an answer begins no wait.
func TestChooseInTime(t *testing.T) {
	const own, other = 1, 2
	stray, slow := []found{{cluster: other}}, []found{{err: context.DeadlineExceeded}}
	type step struct {
		lasts   time.Duration // choose is called for so long, once a second
		answers []found
		want    uint64 // after it
		early   bool
	}
	for name, c := range map[string]struct {
		was   uint64
		steps []step
	}{
		"no network, and then a stray first": {own, []step{{2 * orphaned, nil, own, false}, {orphaned / 2, stray, own, false}, {time.Second, []found{{cluster: other}, {cluster: own}}, own, false},
			{orphaned / 2, stray, own, false}, {orphaned, stray, other, false}}},
		"nobody answers, and then a stray":  {own, []step{{2 * orphaned, slow, own, false}, {orphaned / 2, stray, own, false}}},
		"a stray, no network, and a stray":  {own, []step{{orphaned / 2, stray, own, false}, {time.Second, nil, own, false}, {orphaned / 2, stray, own, false}}},
		"a stray alone":                     {own, []step{{orphaned + time.Second, stray, other, false}, {time.Second, []found{{cluster: own}, {cluster: other}}, other, false}}},
		"one slow to say, and then a stray": {0, []step{{time.Minute, slow, 0, false}, {0, stray, 0, true}, {choiceWaits + time.Second, stray, other, false}}},
		"nobody says":                       {0, []step{{time.Minute, []found{{}}, 0, false}, {time.Second, []found{{}, {}}, 0, false}, {time.Second, []found{{cluster: own}, {}}, own, false}}},
	} {
		t.Run(name, func(t *testing.T) {
			m, now := members{log: slog.New(slog.DiscardHandler), cluster: c.was}, time.Now()
			for i, s := range c.steps {
				var got uint64
				var ok bool
				for end := now.Add(s.lasts); !now.After(end); now = now.Add(time.Second) {
					got, ok = m.choose(now, s.answers, 3, false)
				}
				if got != s.want || ok == s.early {
					t.Fatalf("step %d: %d, %v; want %d", i, got, ok, s.want)
				}
			}
		})
	}
}

// TestUnusedWhileItReconnects: an endpoint that is not used stays in the list while it connects again, since when it was first. One that cannot be
// reached, or may be used, is not in it.
func TestUnusedWhileItReconnects(t *testing.T) {
	ready := func(f found) end { return end{state: connectivity.Ready, asked: true, found: f} }
	learner := ready(found{cluster: 1, err: errLearner})
	for name, c := range map[string]struct {
		then []end
		want bool
	}{
		"is asked once more":          {[]end{learner}, true},
		"has closed the connection":   {[]end{{state: connectivity.Idle}, {state: connectivity.Connecting}, {state: connectivity.Ready}, learner}, true},
		"cannot be reached":           {[]end{{state: connectivity.Idle}, {state: connectivity.TransientFailure, tried: true}}, false},
		"is tried once more":          {[]end{{state: connectivity.TransientFailure, tried: true}, {state: connectivity.Connecting, tried: true}}, false},
		"does not say what it is":     {[]end{{state: connectivity.Ready}, ready(found{err: context.DeadlineExceeded})}, false},
		"has been promoted meanwhile": {[]end{{state: connectivity.Idle}, ready(found{cluster: 1})}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := learner
				s := &spread{of: &endpoints{members: &members{log: slog.New(slog.DiscardHandler)}}, ends: []*end{&e}}
				s.usable(1, true)
				since := time.Now()
				for _, e = range c.then {
					time.Sleep(time.Second)
					s.usable(1, true)
				}
				if got := s.of.members.list(); len(got) > 1 || (len(got) == 1) != c.want || c.want && !got[0].Since.Equal(since) {
					t.Errorf("%+v, want %t since %v", got, c.want, since)
				}
			})
		})
	}
}
