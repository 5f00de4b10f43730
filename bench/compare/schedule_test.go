package main

import (
	"testing"
	"time"
)

func TestScheduleKeepsTheBudget(t *testing.T) {
	for _, c := range []struct {
		name             string
		budget           time.Duration
		slots, underlays int
		fits             bool
	}{
		{"full run", fullBudget, 20 * fullRounds, 2, true},
		{"full run with more tiers", fullBudget, 28 * fullRounds, 2, true},
		{"quick run", quickBudget, 20 * quickRounds, 2, true},
		{"quick run with more tiers", quickBudget, 28 * quickRounds, 2, true},
		{"far too many rounds", time.Minute, 1000, 2, false},
		{"no slot", time.Minute, 0, 1, true},
	} {
		s, fits := newSchedule(c.budget, ledger{slots: c.slots, setups: c.underlays})
		if fits != c.fits {
			t.Errorf("%s: fits is %v, want %v", c.name, fits, c.fits)
		}
		all := time.Duration(c.slots)*(s.total()+slotCost) + time.Duration(c.underlays)*setupTime
		if c.fits && all > c.budget {
			t.Errorf("%s: takes %s of %s", c.name, all, c.budget)
		}
		if got := s.total(); got < minSlot*98/100 || got > maxSlot {
			t.Errorf("%s: %s of traffic per slot", c.name, got)
		}
	}
}

func TestBudgetsAreWhatWasPromised(t *testing.T) {
	if fullBudget >= 10*time.Minute || quickBudget >= 90*time.Second {
		t.Errorf("budgets are %s and %s, want less than 10 minutes and 90 seconds", fullBudget, quickBudget)
	}
}

// TestScheduleMakesUpForWhatWasSlow: slots that cost more than expected leave less to the others.
func TestScheduleMakesUpForWhatWasSlow(t *testing.T) {
	l := ledger{slots: 40}
	first, _ := newSchedule(2*time.Minute, l)
	l.count(20, 70*time.Second, first)
	if l.slots != 20 || l.done != 20 {
		t.Fatalf("ledger is %+v", l)
	}
	second, fits := newSchedule(50*time.Second, l)
	if !fits || second.total() >= first.total() {
		t.Errorf("%s of traffic after %s", second.total(), first.total())
	}
	if all := 20 * (second.total() + l.cost()); all > 50*time.Second {
		t.Errorf("the rest takes %s of 50s", all)
	}
	l.count(20, 20*second.total(), second)
	if got := l.cost(); got < slotCost {
		t.Errorf("a slot costs %s, less than expected", got)
	}
}
