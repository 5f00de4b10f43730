package main

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// moment is a time, and what other machines had taken of the processors until then.
type moment struct {
	time   time.Time
	stolen time.Duration
}

func now(t *testing.T) moment {
	t.Helper()
	return moment{time.Now(), stolenTime(t)}
}

// passed returns how long ago m was, without what a hypervisor gave to other machines since then: that
// is not the daemon's.
func (m moment) passed(t *testing.T) time.Duration {
	t.Helper()
	return time.Since(m.time) - (stolenTime(t)-m.stolen)/time.Duration(runtime.NumCPU())
}

// stolenTime returns how long the processors of this machine, all together, have waited for a
// hypervisor: the 8th figure of /proc/stat, in hundredths of a second.
func stolenTime(t *testing.T) time.Duration {
	t.Helper()
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	ticks, err := strconv.ParseInt(strings.Fields(string(b))[8], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
