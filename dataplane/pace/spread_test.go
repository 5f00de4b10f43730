package pace

import (
	"testing"
	"time"
)

const ms = time.Millisecond

func newSpread() *Spread {
	return &Spread{Gather: 100 * ms, Intact: 400 * ms, Altered: 30 * time.Second}
}

func TestSpreadIsShortAfterAQuietTime(t *testing.T) {
	s := newSpread()
	for range 20 {
		s.Note(Altered, 0, time.Unix(1000, 0))
	}
	busy, quiet := s.Wait(time.Unix(1001, 0)), s.Wait(time.Unix(1301, 0))
	if busy < s.Altered*3/4 || busy > s.Altered*5/4 || quiet != s.Gather {
		t.Errorf("wait %v, after a quiet time %v", busy, quiet)
	}
}

func TestSpread(t *testing.T) {
	type step struct {
		after time.Duration // since the step before
		found Finding
		pause time.Duration // then
	}
	for name, steps := range map[string][]step{
		"nothing to look at": {{0, Nothing, 0}, {100 * ms, Nothing, 0}},
		"nothing to repair":  {{0, Intact, 200 * ms}, {ms, Intact, 400 * ms}, {ms, Intact, 400 * ms}},
		"somebody undoes it": {{0, Altered, 200 * ms}, {ms, Altered, 400 * ms}, {ms, Altered, 800 * ms}, {ms, Altered, 1600 * ms},
			{ms, Altered, 3200 * ms}, {ms, Altered, 6400 * ms}, {ms, Altered, 12800 * ms}, {ms, Altered, 25600 * ms},
			{ms, Altered, 30 * time.Second}, {ms, Altered, 30 * time.Second}},
		"quiet":          {{0, Altered, 200 * ms}, {3 * time.Second, Altered, 200 * ms}},
		"quiet at last":  {{0, Intact, 200 * ms}, {3 * time.Second, Nothing, 0}},
		"no more undone": {{0, Altered, 200 * ms}, {ms, Altered, 400 * ms}, {ms, Altered, 800 * ms}, {5 * time.Second, Intact, 800 * ms}, {4 * time.Second, Intact, 200 * ms}},
	} {
		s, now := newSpread(), time.Unix(1000, 0)
		for i, step := range steps {
			now = now.Add(step.after)
			s.Wait(now)
			if s.Note(step.found, 0, now); s.pause != step.pause {
				t.Errorf("%s, step %d: pause %v, want %v", name, i, s.pause, step.pause)
			}
		}
	}
}

// Without limits the wait stays at Gather, whatever looks find.
func TestSpreadWithoutLimits(t *testing.T) {
	s, now := Spread{Gather: 250 * ms}, time.Unix(1000, 0)
	for _, f := range []Finding{Intact, Altered, Nothing, Altered} {
		s.Note(f, time.Second, now)
		if d := s.Wait(now); d != s.Gather {
			t.Errorf("wait %v", d)
		}
	}
}

// Expensive looks take a tenth of the time at most, but never wait longer than Rest.
func TestSpreadRests(t *testing.T) {
	for _, tc := range []struct{ took, want time.Duration }{
		{0, 100 * ms}, {5 * ms, 100 * ms}, {50 * ms, 500 * ms}, {time.Minute, time.Second},
	} {
		s, now := Spread{Gather: 100 * ms, Rest: time.Second}, time.Unix(1000, 0)
		s.Note(Intact, tc.took, now)
		if d := s.Wait(now); d != tc.want {
			t.Errorf("after a look of %v: wait %v, want %v", tc.took, d, tc.want)
		}
		if d := s.Wait(now.Add(time.Second)); d != s.Gather {
			t.Errorf("later: wait %v", d)
		}
	}
}

func TestWakeNeverWaits(t *testing.T) {
	c := make(chan struct{}, 1)
	Wake(c)
	Wake(c)
	<-c
	select {
	case <-c:
		t.Error("woken twice")
	default:
	}
}
