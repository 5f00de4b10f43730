package main

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestDrift: what somebody else breaks of what overlayd keeps is back within a second, each time, with the
// same MAC and a line in the log. There are a few faults, or one every four seconds for as long as
// OVERLAYD_DRIFT says, as in make test-long; OVERLAYD_SEED repeats a run.
func TestDrift(t *testing.T) {
	t.Parallel()
	seed := numberFrom(t, "OVERLAYD_SEED", rand.Uint64())
	t.Logf("OVERLAYD_SEED=%d repeats this", seed)
	for i, c := range []struct {
		mode   string
		filter packetFilter
		args   []string
		within time.Duration
		least  int // faults
	}{
		{modeKernel, filterIPT, nil, time.Second, 3},
		{modeUserspace, filterNFT, nil, time.Second, 3},
		{modeKernel, filterNFT, []string{"--debug-events=off"}, 10 * time.Second, 1},
		{modeUserspace, filterIPT, []string{"--debug-events=off"}, 10 * time.Second, 1},
	} {
		t.Run(fmt.Sprint(c.mode, c.args), func(t *testing.T) {
			t.Parallel()
			d := newDrift(t, c.mode, c.filter, c.args...)
			faults := driftFaults(c.mode, c.filter)
			drawn := draw(slices.Sorted(maps.Keys(faults)), seed+uint64(i))
			every, until := time.Duration(0), time.Now()
			if long := durationFrom(t, "OVERLAYD_DRIFT", 0); long > 0 {
				every, until = 4*time.Second, until.Add(long)
			}
			for i := 0; i < c.least || time.Now().Before(until); i++ {
				began, name := time.Now(), drawn()
				d.fault(name, faults[name], c.within)
				if wait := every - time.Since(began); wait > 0 {
					time.Sleep(wait)
				}
			}
			d.tell()
		})
	}
}

// draw returns what draws a name at random. None is drawn again before all were.
func draw(names []string, seed uint64) func() string {
	rnd, left := rand.New(rand.NewPCG(seed, 0)), []string(nil)
	return func() string {
		if len(left) == 0 {
			left = slices.Clone(names)
			rnd.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
		}
		name := left[0]
		left = left[1:]
		return name
	}
}

// drift is two hosts with a pod each, the first of which has faults.
type drift struct {
	*host
	a, b    *pod
	healthy string
	words   *strings.Replacer // of the commands; see fault
	took    []repair
}

type repair struct {
	of   string
	took time.Duration
}

func newDrift(t *testing.T, mode string, filter packetFilter, args ...string) *drift {
	t.Helper()
	c := newClusterOn(t, []string{under4, under6}, 2, filter.in(dualNetwork))
	a, b := c.upPair([2]string{mode, modeKernel}, append(args, "--ip-masq")...)
	h, peer := c.hosts[0], c.hosts[1].gateways()
	four, six := peer[0].Masked(), peer[1].Masked()
	d := &drift{host: h, a: a, b: b, words: strings.NewReplacer("SUBNET6", six.String(), "BASE6", six.Addr().String(),
		"SUBNET", four.String(), "BASE", four.Addr().String(), "NET6", "fd00:5::/48", "NET", "10.5.0.0/16", "FILE", h.subnetFile)}
	for d.healthy = d.kept(); d.healthy != d.kept(); d.healthy = d.kept() { // it has just begun
		time.Sleep(50 * time.Millisecond)
	}
	return d
}

// sh does a command on the host.
func (d *drift) sh(command string) { d.Run("sh", "-c", d.words.Replace(command)) }

// lines returns how many lines the daemon has logged.
func (d *drift) lines() int { return linesWith(d.daemon.text(), "level=") }

// fault does a fault, and waits until all is as it was, and pods reach each other.
func (d *drift) fault(name string, f fault, within time.Duration) {
	t := d.c.t
	t.Helper()
	before := d.lines()
	d.sh(f.do)
	d.back(name, within)
	for i, addr := range d.b.addrs {
		if err := echoWithin(d.a.NS, addr, 1200, promised(time.Second)); err != nil {
			t.Fatalf("%s: address %d: %v", name, i, err)
		}
	}
	if f.quiet {
		return
	}
	eventually(t, promised(time.Second), name+": a line in the log", func() error {
		if d.lines() == before {
			return fmt.Errorf("no line of %s", name)
		}
		return nil
	})
}

// back waits until all that overlayd keeps is as it was.
func (d *drift) back(what string, within time.Duration) {
	d.c.t.Helper()
	began := now(d.c.t)
	for d.kept() != d.healthy {
		if took := began.passed(d.c.t); took > promised(within) {
			d.c.t.Fatalf("%s: not back after %s:\n%s", what, took, differencesOf(d.healthy, d.kept()))
		}
		time.Sleep(5 * time.Millisecond)
	}
	d.took = append(d.took, repair{what, began.passed(d.c.t).Round(time.Millisecond)})
}

// differencesOf returns the lines that only one of two texts has.
func differencesOf(was, is string) string {
	var text strings.Builder
	had, has := strings.Split(was, "\n"), strings.Split(is, "\n")
	for _, line := range had {
		if !slices.Contains(has, line) {
			fmt.Fprintln(&text, "-", line)
		}
	}
	for _, line := range has {
		if !slices.Contains(had, line) {
			fmt.Fprintln(&text, "+", line)
		}
	}
	return text.String()
}

// tell logs how long the repairs took, the slowest first.
func (d *drift) tell() {
	slices.SortFunc(d.took, func(a, b repair) int { return cmp.Compare(b.took, a.took) })
	d.c.t.Logf("%d faults, median %s: %v", len(d.took), d.took[len(d.took)/2].took, d.took)
}
