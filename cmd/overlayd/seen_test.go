package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestManyPeersAreSeen: with 10 000 peers `overlayd status` takes 200 ms, a scrape 100 ms, and probes 1 % of a processor and
// 10 MB. OVERLAYD_SEEN, as in make test-long, is more peers than the usual 1000, and has the times checked.
func TestManyPeersAreSeen(t *testing.T) {
	t.Parallel()
	peers := int(numberFrom(t, "OVERLAYD_SEEN", 1000))
	strict := peers >= 10_000
	pairs, settle, during := 1, 2*time.Second, 2*time.Second
	if strict {
		pairs, settle, during = 5, 5*time.Second, 10*time.Second // a round of probes
	}
	c := newCluster(t, 1, wideNetwork)
	c.fill(peers)
	h := c.hosts[0]
	run := func(args ...string) (cpu float64, rss int) {
		h.up(append([]string{"--dataplane", modeUserspace, "--metrics-port=9799"}, args...)...)
		time.Sleep(settle) // it has started
		before, began := h.cpuTime(), time.Now()
		var sizes []int // they rise until the next garbage collection
		for tick := time.NewTicker(during / 20); time.Since(began) < during; <-tick.C {
			sizes = append(sizes, h.daemon.resident())
		}
		return (h.cpuTime() - before).Seconds() / time.Since(began).Seconds(), median(sizes)
	}
	var costs []float64 // of probes, in processors
	var sizes []int     // of probes, in kB
	for i := range pairs {
		idle, small := run("--probe-interval=0")
		h.daemon.stop(unix.SIGTERM)
		busy, large := run("--probe-interval=10s")
		costs, sizes = append(costs, busy-idle), append(sizes, large-small)
		if i < pairs-1 {
			h.daemon.stop(unix.SIGTERM)
		}
	}
	cost, size := median(costs), median(sizes)
	status, scraped := time.Hour, time.Hour
	for range 5 {
		began := time.Now()
		if code, out := overlayd(t, "status", "--subnet-file", h.subnetFile); code > exitFailure {
			t.Fatalf("status: %d %s", code, out)
		}
		status = min(status, time.Since(began))
		began = time.Now()
		scrape(t, h)
		scraped = min(scraped, time.Since(began))
	}
	t.Logf("%d peers: status %s, scrape %s, probes %.2f %% of a processor and %.1f MB", peers, status.Round(time.Millisecond), scraped.Round(time.Millisecond),
		100*cost, float64(size)/1000)
	t.Logf("of pairs, sorted: %.4f processors, %d kB", costs, sizes)
	if strict && (status > 200*time.Millisecond || scraped > 100*time.Millisecond || cost > 0.01 || size > 10_000) {
		t.Error("want 200ms, 100ms, 1 % and 10 MB")
	}
}

// median returns the middle one of the values, which it sorts.
func median[T cmp.Ordered](values []T) T {
	slices.Sort(values)
	return values[len(values)/2]
}

// cpuTime returns how long processors have worked for the daemon, in ticks of 10 ms (proc(5)).
func (h *host) cpuTime() time.Duration {
	h.c.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.daemon.cmd.Process.Pid))
	if err != nil {
		h.c.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	var ticks time.Duration
	for _, field := range strings.Fields(rest)[11:13] { // utime, stime
		n, err := strconv.Atoi(field)
		if err != nil {
			h.c.t.Fatal(err)
		}
		ticks += time.Duration(n)
	}
	return ticks * 10 * time.Millisecond
}
