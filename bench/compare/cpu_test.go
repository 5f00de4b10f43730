package main

import (
	"math"
	"os"
	"strings"
	"testing"
	"time"
)

func TestParseMachine(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       float64 // <0: an error
	}{
		{"idle, iowait, steal and guest do not count", "cpu  100 20 300 9999 8888 4 500 7777 50 5\ncpu0 1 1 1 1\n", 9.24},
		{"no steal (before Linux 2.6.11)", "cpu 100 0 0 0 0 0 0", 1},
		{"another first line", "intr 1 2 3 4 5 6 7 8 9", -1},
		{"too short", "cpu 1 2", -1},
		{"not a number", "cpu 1 2 x 4 5 6 7 8", -1},
		{"empty", "", -1},
	} {
		got, err := parseMachine(c.text)
		switch {
		case c.want < 0:
			if err == nil {
				t.Errorf("%s: no error", c.name)
			}
		case err != nil || math.Abs(got-c.want) > 1e-9:
			t.Errorf("%s: got %v, %v, want %v", c.name, got, err, c.want)
		}
	}
}

func TestParseProc(t *testing.T) {
	const rest = " S 41 42 42 0 -1 4194560 100 0 0 0 250 50 7 8 20 0 1 0 12345"
	for _, c := range []struct {
		name, text string
		ok         bool
	}{
		{"plain", "42 (compare)" + rest, true},
		{"brackets and spaces in the name", "42 (a) b (c)" + rest, true},
		{"no name", "42 compare" + rest, false},
		{"cut", "42 (compare) S 41 42", false},
		{"not a number", "42 (compare)" + strings.Replace(rest, "250", "x", 1), false},
		{"empty", "", false},
	} {
		got, err := parseProc(c.text)
		if (err == nil) != c.ok {
			t.Errorf("%s: error %v, want one: %v", c.name, err, !c.ok)
		}
		if want := (procStat{pid: 42, parent: 41, seconds: 3}); c.ok && got != want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, want)
		}
	}
}

func TestSumBelow(t *testing.T) {
	procs := make(map[int]procStat)
	for _, p := range []procStat{
		{1, 0, 1000}, {10, 1, 1}, {11, 10, 2}, {12, 11, 4}, {20, 1, 8}, {21, 20, 16}, {30, 1, 500},
	} {
		procs[p.pid] = p
	}
	if got := sumBelow(procs, []int{10, 20, 99}); got != 31 {
		t.Errorf("got %v, want 31: two trees, without their parent, their sibling and a process that is not there", got)
	}
}

// TestReadCPUSeesThisProcess burns a little of its own time.
func TestReadCPUSeesThisProcess(t *testing.T) {
	before, err := readCPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		after, err := readCPU(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		used := after.sub(before)
		if used.processes > 0 && used.machine > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("used %+v in 20 s of reading /proc", used)
		}
	}
}
