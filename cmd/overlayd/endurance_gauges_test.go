package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// asGauged makes the daemon of a test write a line about itself at SIGWINCH, which does nothing otherwise. That is
// exact to the byte, where GODEBUG=gctrace=1 tells whole megabytes.
const asGauged = "OVERLAYD_TEST_GAUGED"

// gauge writes what the process has, after two collections: the second one takes what the first has finalized.
func gauge() {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fmt.Fprintf(os.Stderr, "gauge goroutines=%d heap=%d\n", runtime.NumGoroutine(), m.HeapAlloc)
}

// reading is what a daemon has at some time.
type reading struct {
	at         time.Time
	goroutines int
	heap, rss  float64  // MB: what lives in the heap after a collection, and VmRSS before that
	files      []string // what its file descriptors are
}

// gauged takes a reading of a daemon with asGauged.
func (p *process) gauged() (r reading) {
	p.t.Helper()
	r = reading{at: time.Now(), rss: float64(p.resident()) / (1 << 10), files: p.files()}
	const line = "gauge goroutines="
	before := linesWith(p.text(), line)
	p.cmd.Process.Signal(unix.SIGWINCH)
	eventually(p.t, patience, p.name+" gauges itself", func() error {
		if linesWith(p.text(), line) == before {
			return errors.New("no line")
		}
		return nil
	})
	text := p.text()
	heap := 0
	fmt.Sscanf(text[strings.LastIndex(text, line):], line+"%d heap=%d", &r.goroutines, &heap)
	r.heap = float64(heap) / (1 << 20)
	return r
}

// calm takes readings until two in a row have as many files and goroutines.
func (p *process) calm() (r reading) {
	p.t.Helper()
	eventually(p.t, patience, p.name+" is calm", func() error {
		before := r
		if r = p.gauged(); len(r.files) != len(before.files) || r.goroutines != before.goroutines {
			return fmt.Errorf("%d files and %d goroutines, were %d and %d", len(r.files), r.goroutines, len(before.files), before.goroutines)
		}
		return nil
	})
	return r
}

// resident returns VmRSS in kB.
func (p *process) resident() (kb int) {
	p.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmRSS:")
	fmt.Sscan(rest, &kb)
	return kb
}

var inode = regexp.MustCompile(`\[\d+\]`)

// files returns what the file descriptors are, sorted.
func (p *process) files() (all []string) {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.cmd.Process.Pid)) // the pattern is well-formed
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil {
			all = append(all, inode.ReplaceAllString(to, ""))
		}
	}
	slices.Sort(all)
	return all
}

// growth returns how much a figure grows in a minute, from the middle of the first third of the readings to that of the last.
func growth(all []reading, of func(reading) float64) float64 {
	third := len(all) / 3
	if third == 0 {
		return 0
	}
	middle := func(part []reading) (time.Time, float64) {
		figures := make([]float64, len(part))
		for i, r := range part {
			figures[i] = of(r)
		}
		slices.Sort(figures)
		return part[len(part)/2].at, figures[len(figures)/2]
	}
	began, first := middle(all[:third])
	ended, last := middle(all[len(all)-third:])
	return (last - first) / ended.Sub(began).Minutes()
}

// The limits of the issue, in MB a minute, hold for a run that is long enough to tell. A shorter one may grow by what the
// daemon needs to warm up, whatever its length: its buffers, and what it keeps of a store that it has followed once.
const (
	longEnough             = 5 * time.Minute
	heapGrowth, rssGrowth  = 0.05, 0.3
	heapWarmUp, rssWarmUp  = 1, 8 // MB
	goroutinesMore         = 5
	readingsForAnyJudgment = 2
)

// judge returns what of a daemon's readings is not as it should be.
func judge(all []reading) (wrong []string) {
	if len(all) < readingsForAnyJudgment {
		return []string{fmt.Sprintf("only %d readings", len(all))}
	}
	first, last := all[0], all[len(all)-1]
	if d := difference(first.files, nil, last.files); len(d) > 0 {
		wrong = append(wrong, fmt.Sprintf("%d files open, were %d:\n%s", len(last.files), len(first.files), strings.Join(d, "\n")))
	}
	if more := last.goroutines - first.goroutines; more > goroutinesMore || more < -goroutinesMore {
		wrong = append(wrong, fmt.Sprintf("%d goroutines, were %d", last.goroutines, first.goroutines))
	}
	for _, of := range []struct {
		name       string
		of         func(reading) float64
		each, once float64
	}{
		{"live heap", func(r reading) float64 { return r.heap }, heapGrowth, heapWarmUp},
		{"resident memory", func(r reading) float64 { return r.rss }, rssGrowth, rssWarmUp},
	} {
		if last.at.Sub(first.at) < longEnough {
			if grown := of.of(last) - of.of(first); grown > of.once {
				wrong = append(wrong, fmt.Sprintf("%s grew by %.2f MB, may by %.2f", of.name, grown, of.once))
			}
		} else if rate := growth(all, of.of); rate > of.each {
			wrong = append(wrong, fmt.Sprintf("%s grew by %.3f MB a minute, may by %.3f", of.name, rate, of.each))
		}
	}
	return wrong
}

func TestJudge(t *testing.T) {
	t.Parallel()
	run := func(every time.Duration, change func(i int, r *reading)) (all []reading) {
		for i := range 30 {
			r := reading{at: time.Unix(0, 0).Add(time.Duration(i) * every), goroutines: 40, heap: 5, rss: 60, files: []string{"socket:", "socket:"}}
			r.heap += float64(i%2) / 10 // it is never quite the same
			change(i, &r)
			all = append(all, r)
		}
		return all
	}
	for name, c := range map[string]struct {
		every  time.Duration
		change func(i int, r *reading)
		want   string // "": nothing
	}{
		"nothing":              {time.Minute, func(int, *reading) {}, ""},
		"heap, slowly":         {time.Minute, func(i int, r *reading) { r.heap += 0.04 * float64(i) }, ""},
		"heap":                 {time.Minute, func(i int, r *reading) { r.heap += 0.06 * float64(i) }, "live heap grew by 0.06"},
		"heap, first":          {time.Minute, func(i int, r *reading) { r.heap += 3 * min(float64(i), 4) }, ""},
		"heap, a peak":         {time.Minute, func(i int, r *reading) { r.heap += float64(9 * (i / 29)) }, ""},
		"resident":             {time.Minute, func(i int, r *reading) { r.rss += 0.4 * float64(i) }, "resident memory grew by 0.4"},
		"heap, short":          {time.Second, func(i int, r *reading) { r.heap += 0.02 * float64(i) }, ""},
		"heap, short and much": {time.Second, func(i int, r *reading) { r.heap += 0.05 * float64(i) }, "live heap grew by 1.55 MB"},
		"a file":               {time.Minute, func(i int, r *reading) { r.files = r.files[i/29:] }, "lacks socket:"},
		"another file":         {time.Minute, func(i int, r *reading) { r.files[i/29] = []string{"socket:", "pipe:"}[i/29] }, "has   pipe:"},
		"five goroutines":      {time.Minute, func(i int, r *reading) { r.goroutines += i / 5 }, ""},
		"six goroutines":       {time.Minute, func(i int, r *reading) { r.goroutines += i * 6 / 29 }, "46 goroutines, were 40"},
	} {
		got := strings.Join(judge(run(c.every, c.change)), "\n")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// summary is a line about all readings.
func summary(all []reading) string {
	first, last := all[0], all[len(all)-1]
	return fmt.Sprintf("%d files, then %d; %d goroutines, then %d; live heap %.2f MB, then %.2f, %.3f a minute; resident %.1f MB, then %.1f, %.3f a minute",
		len(first.files), len(last.files), first.goroutines, last.goroutines,
		first.heap, last.heap, growth(all, func(r reading) float64 { return r.heap }),
		first.rss, last.rss, growth(all, func(r reading) float64 { return r.rss }))
}
