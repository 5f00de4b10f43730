package main

import (
	"slices"
	"testing"
	"time"

	"github.com/overlayd/overlayd/bench/testbed"
)

func TestPercentile(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = 100 - i
	}
	for _, c := range []struct {
		name   string
		values []int
		p      float64
		want   int
	}{
		{"one value", []int{7}, 99, 7},
		{"median of an even number is the lower one", []int{4, 1, 3, 2}, 50, 2},
		{"p99 of 100 is the 99th", hundred, 99, 99},
		{"p50 of 100 is the 50th", hundred, 50, 50},
		{"p99 of a few is the largest", []int{5, 9, 1}, 99, 9},
		{"p0 is the smallest", []int{5, 9, 1}, 0, 1},
		{"p100 is the largest", []int{5, 9, 1}, 100, 9},
	} {
		if got := percentile(slices.Clone(c.values), c.p); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

func TestMean(t *testing.T) {
	if got := mean([]time.Duration{1, 2, 6}); got != 3 {
		t.Errorf("got %d, want 3", got)
	}
}

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

// Streams overlap: their time is from the first byte of any to the end of the last.
func TestTotal(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	streams := []testbed.Received{{Bytes: 1, First: at(2), End: at(5)}, {Bytes: 2, First: at(1), End: at(3)}, {Bytes: 4, First: at(3), End: at(6)}}
	if bytes, elapsed := total(streams); bytes != 7 || elapsed != 5*time.Second {
		t.Errorf("got %d bytes in %s, want 7 in 5s", bytes, elapsed)
	}
}
