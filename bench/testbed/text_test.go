package testbed

import (
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		in   []time.Duration
		want time.Duration
	}{{nil, 0}, {[]time.Duration{7}, 7}, {[]time.Duration{9, 1, 5}, 5}, {[]time.Duration{4, 1, 2, 100}, 3}} {
		if got := Median(tt.in); got != tt.want {
			t.Errorf("median is %d, want %d", got, tt.want)
		}
	}
}

func TestTail(t *testing.T) {
	if got := Tail("a\nb\nc", 2); got != "  b\n  c\n" {
		t.Errorf("got %q", got)
	}
	if got := Tail("", 2); got != "" {
		t.Errorf("got %q", got)
	}
}
