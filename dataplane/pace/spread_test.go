package pace

import (
	"fmt"
	"testing"
	"time"
)

const ms = time.Millisecond

// The first sign of a change is looked at soon, and the next a fixed time after that.
func TestSpread(t *testing.T) {
	s, now := Spread{Gather: 10 * ms, Between: 100 * ms}, time.Unix(1000, 0)
	for range 20 {
		if d := s.Wait(now); d != 10*ms {
			t.Errorf("first wait %v", d)
		}
		s.Note(0, now)
		if d := s.Wait(now.Add(20 * ms)); d != 80*ms {
			t.Errorf("second wait %v", d)
		}
		now = now.Add(time.Second)
	}
}

// Only the object that somebody fights over waits longer and longer, up to a limit, and not after the fight.
func TestHolds(t *testing.T) {
	var h Holds
	now := time.Unix(1000, 0)
	for i, want := range []time.Duration{100 * ms, 200 * ms, 400 * ms, 500 * ms, 500 * ms} {
		h.Fought(now, "route a")
		if d, held := h.Held(now, "route a"); !held || d < want*3/4 || d > want*5/4 {
			t.Errorf("fight %d: held %v for %v, want about %v", i, held, d, want)
		}
		if d, held := h.Held(now, "route b"); held {
			t.Errorf("fight %d: another object waits %v", i, d)
		}
		now = now.Add(700 * ms)
		if _, held := h.Held(now, "route a"); held || !h.Any(now) {
			t.Errorf("fight %d: held for too long, or forgotten", i)
		}
	}
	if now = now.Add(3 * time.Second); h.Any(now) {
		t.Error("a fight that is over is remembered")
	}
	h.Fought(now, "route a")
	if d, _ := h.Held(now, "route a"); d > 125*ms {
		t.Errorf("next fight: wait %v", d)
	}
}

// Whoever looks only every five seconds repairs what somebody undoes at once no sooner.
func TestFightsOfRareLooks(t *testing.T) {
	f, now := Fights{Within: 7 * time.Second}, time.Unix(1000, 0)
	for i := range 20 {
		now = now.Add(5 * time.Second)
		if got := f.Repaired(now, "rules"); got != (i+1 >= fightRepairs) {
			t.Errorf("repair %d: fought %v", i, got)
		}
	}
	if f.Repaired(now.Add(8*time.Second), "rules") {
		t.Error("a later repair is fought")
	}
}

func TestFights(t *testing.T) {
	var f Fights
	now := time.Unix(1000, 0)
	for i, c := range []struct {
		after time.Duration
		want  bool
	}{{0, false}, {time.Second, false}, {2 * time.Second, false}, {time.Second, false}, {time.Second, true}, {0, true}, {3 * time.Second, false}, {0, false}} {
		now = now.Add(c.after)
		if got := f.Repaired(now, "route a"); got != c.want {
			t.Errorf("repair %d: fought %v, want %v", i, got, c.want)
		}
		f.Repaired(now.Add(time.Duration(i)*time.Hour), "route b")
	}
	for i := range 5000 {
		f.Repaired(now.Add(time.Hour), fmt.Sprint(i))
	}
	if len(f.repaired) > fightsKept {
		t.Errorf("remembers %d objects", len(f.repaired))
	}
}

// Expensive looks take a tenth of the time at most, but never wait longer than Rest.
func TestSpreadRests(t *testing.T) {
	for _, tc := range []struct{ took, want time.Duration }{
		{0, 100 * ms}, {5 * ms, 100 * ms}, {50 * ms, 500 * ms}, {time.Minute, time.Second},
	} {
		s, now := Spread{Gather: 100 * ms, Rest: time.Second}, time.Unix(1000, 0)
		s.Note(tc.took, now)
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
