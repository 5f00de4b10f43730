package etcdrpc

import (
	"log/slog"
	"testing"
	"time"
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
		away    time.Duration // since one of it has answered
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
	} {
		now := time.Now()
		m := members{log: slog.New(slog.DiscardHandler), cluster: c.was}
		if c.was != 0 || c.away > 0 {
			m.heard = now.Add(-c.away)
		}
		if got, ok := m.choose(now, c.answers, 3, c.settled); got != c.want || ok == c.early {
			t.Errorf("%s: %d, %v; want %d", name, got, ok, c.want)
		}
	}
}
