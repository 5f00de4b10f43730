package main

import (
	"slices"
	"testing"
)

func TestSummarise(t *testing.T) {
	for _, c := range []struct {
		name             string
		values           []float64
		median, min, max float64
	}{
		{"odd", []float64{3, 1, 2}, 2, 1, 3},
		{"even", []float64{4, 1, 3, 2}, 2.5, 1, 4},
		{"one", []float64{5}, 5, 5, 5},
	} {
		before := slices.Clone(c.values)
		s, ok := summarise(c.values)
		if !ok || s.Median != c.median || s.Min != c.min || s.Max != c.max {
			t.Errorf("%s: got %+v, %v", c.name, s, ok)
		}
		if !slices.Equal(s.Values, before) {
			t.Errorf("%s: values %v are not in the order of the rounds %v", c.name, s.Values, before)
		}
	}
	if s, ok := summarise(nil); ok {
		t.Errorf("nothing has the summary %+v", s)
	}
}
