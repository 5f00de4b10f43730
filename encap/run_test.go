package encap

import (
	"fmt"
	"slices"
	"testing"
)

func TestRunLen(t *testing.T) {
	limit := RunLimit{Datagrams: MaxRunDatagramsNew, Bytes: MaxRunBytes}
	for _, tt := range []struct {
		name       string
		left, size int
		limit      RunLimit
		want       []int
	}{
		{"nothing", 0, 1472, limit, nil},
		{"less than nothing", -1, 1472, limit, nil},
		{"no size", 1000, 0, limit, nil},
		{"one", 1472, 1472, limit, []int{1}},
		{"one short", 1, 1472, limit, []int{1}},
		{"a whole superpacket", 46 * 1472, 1472, limit, []int{23, 23}},
		{"its last one short", 45*1472 + 100, 1472, limit, []int{23, 23}},
		{"fits as the last one is short", 44*1472 + 700, 1472, limit, []int{45}},
		{"just fits", 65507, 1472, limit, []int{45}},
		{"one byte too many", 65508, 1472, limit, []int{23, 22}},
		{"three runs", 100 * 1472, 1472, limit, []int{34, 33, 33}},
		{"small ones", 200 * 100, 100, limit, []int{100, 100}},
		{"small ones on an old kernel", 200 * 100, 100, RunLimit{MaxRunDatagrams, MaxRunBytes}, []int{50, 50, 50, 50}},
		{"no batching", 3 * 1000, 1000, RunLimit{Datagrams: 1, Bytes: MaxRunBytes}, []int{1, 1, 1}},
		{"too large", 2 * 70_000, 70_000, limit, []int{1, 1}},
		{"no limit set", 2000, 1000, RunLimit{}, []int{1, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := runs(tt.left, tt.size, tt.limit); !slices.Equal(got, tt.want) {
				t.Errorf("runs of %v, want %v", got, tt.want)
			}
		})
	}
}

func runs(left, size int, limit RunLimit) (lens []int) {
	for {
		n := RunLen(left, size, limit)
		if n == 0 {
			return lens
		}
		lens = append(lens, n)
		left -= n * size
	}
}

// TestRunLenBounds has many sizes: every run is within the limit, and no two of
// them differ by more than a datagram, but for the one more that a short last
// datagram may leave room for.
func TestRunLenBounds(t *testing.T) {
	limit := RunLimit{Datagrams: MaxRunDatagrams, Bytes: MaxRunBytes}
	for left := 1; left < 140_000; left += 997 {
		for _, size := range []int{23, 64, 576, 1398, 1472, 8972, 40_000, 65507} {
			lens := runs(left, size, limit)
			rest := left
			for _, n := range lens {
				if n > limit.Datagrams || min(rest, n*size) > limit.Bytes {
					t.Fatalf("%d bytes by %d: runs of %v are above the limit", left, size, lens)
				}
				rest -= n * size
			}
			if rest > 0 || rest <= -size || slices.Max(lens)-slices.Min(lens) > 2 {
				t.Fatalf("%d bytes by %d: runs of %v", left, size, lens)
			}
		}
	}
}

// TestSplitterRuns takes a superpacket apart run by run.
func TestSplitterRuns(t *testing.T) {
	limit := RunLimit{Datagrams: MaxRunDatagramsNew, Bytes: MaxRunBytes}
	for _, tt := range []struct{ payload, mss, first int }{
		{65535 - 52, 1398, 24}, {44 * 1398, 1398, 44}, {1398, 1398, 1}, {0, 1398, 1},
	} {
		t.Run(fmt.Sprint(tt.payload), func(t *testing.T) {
			var s Splitter
			if err := s.InitTCP(tcpPacket(t, 4, pattern(tt.payload)), 52+tt.mss); err != nil {
				t.Fatal(err)
			}
			if got := s.RunLen(limit); got != tt.first {
				t.Errorf("first run of %d, want %d", got, tt.first)
			}
			hdr := make([]byte, MaxSplitHeader)
			total := 0
			for n := s.RunLen(limit); n > 0; n = s.RunLen(limit) {
				size := 0
				for range n {
					h, payload, ok := s.Next(hdr)
					if !ok || h != s.HeaderLen() {
						t.Fatalf("Next = %d, %v; want %d", h, ok, s.HeaderLen())
					}
					size += HeaderLen + h + len(payload)
				}
				if size > limit.Bytes {
					t.Errorf("a run of %d bytes", size)
				}
				total += n
			}
			if total != s.Segments() {
				t.Errorf("runs have %d segments of %d", total, s.Segments())
			}
		})
	}
}
