package main

import (
	"slices"
	"testing"
	"time"
)

// TestCostsNameRows: a row that is renamed loses its check, and a figure that has no floor is taken for nothing.
func TestCostsNameRows(t *testing.T) {
	rows := map[string]bool{}
	for _, c := range append(candidates("overlayd", "Linux", tiers()), earlier("old", tiers())...) {
		for _, r := range c.rows {
			rows[r.name] = true
		}
	}
	for _, c := range costs() {
		if !rows[c.row] || !rows[c.beside] {
			t.Errorf("no rows %q and %q", c.row, c.beside)
		}
		for _, m := range costMetrics() {
			if c.floors[m.key] == 0 || meanings()[m.key] == "" || len(c.floors) != len(costMetrics()) {
				t.Errorf("%s: no floor or no meaning of %s", c.row, m.key)
			}
		}
	}
}

// TestTurns takes the figures of the two rows of a cost by turns, here of two veth pairs.
func TestTurns(t *testing.T) {
	r, out := newTestRun(t, "default/")
	c := costs()[0]
	j := job{underlay: underlays()[0], candidates: []candidate{
		{name: "one", setup: setupVeth, rows: oneRow(c.row)}, {name: "other", setup: setupVeth, rows: oneRow(c.beside)},
		{name: "alone", setup: setupVeth, rows: oneRow(costs()[1].row)},
	}}
	stands, err := r.setUp(t.Context(), j)
	for _, s := range stands {
		t.Cleanup(func() { s.pair.close() })
	}
	if err != nil || len(stands) != len(j.candidates) {
		t.Fatalf("%d stands, %v\n%s", len(stands), err, out)
	}
	found := findTurns("default", stands)
	if len(found) != 1 || len(found[0].checks) != len(costMetrics()) {
		t.Fatalf("got %+v, want the figures of one cost", found)
	}
	const turns = 2
	if err := found[0].take(t.Context(), 0, turns); err != nil {
		t.Fatal(err)
	}
	for _, k := range found[0].checks {
		if len(k.Ratio.Values) != turns || slices.Min(k.Ratio.Values) <= 0 || len(k.Errors) > 0 {
			t.Errorf("want %d ratios: %+v", turns, k)
		}
	}
}

// TestSlotsHaveTurns: the time of the turns is part of the plan.
func TestSlotsHaveTurns(t *testing.T) {
	c := costs()[0]
	one := candidate{rows: oneRow(c.row)}
	other := candidate{rows: oneRow(c.beside)}
	if n := (job{candidates: []candidate{one}}).slots(); n != 1 {
		t.Errorf("%d slots of one row", n)
	}
	if n := (job{candidates: []candidate{one, other}}).slots(); n != 2+costSlots {
		t.Errorf("%d slots of both rows", n)
	}
	if n := turnsIn(3 * time.Second); n < 4 {
		t.Errorf("%d turns in slots of three seconds", n)
	}
}
