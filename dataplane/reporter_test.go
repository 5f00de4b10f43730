package dataplane

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func newReporter() (*Reporter, *bytes.Buffer) {
	var log bytes.Buffer
	return NewReporter(slog.New(slog.NewTextHandler(&log, nil)), "part"), &log
}

func TestStateOf(t *testing.T) {
	peer := &PeerError{Err: errors.New("refused")}
	for _, tc := range []struct {
		err  error
		want State
	}{
		{nil, StateOK},
		{peer, StateDegraded},
		{fmt.Errorf("sync: %w", errors.Join(peer, peer)), StateDegraded},
		{errors.Join(peer, errors.New("no device")), StateFailed},
	} {
		if got := StateOf(tc.err); got != tc.want {
			t.Errorf("%v: got %s, want %s", tc.err, got, tc.want)
		}
	}
}

// Since tells when the state or its reason changed, not when it was last confirmed.
func TestSinceIsOfTheLastChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newReporter()
		start := time.Now()
		a, b := errors.New("a"), errors.New("b")
		for i, step := range []struct {
			err  error
			want time.Duration
		}{{nil, 0}, {a, 2 * time.Second}, {a, 2 * time.Second}, {b, 4 * time.Second}, {nil, 5 * time.Second}} {
			time.Sleep(time.Second)
			r.Publish(StateOf(step.err), step.err)
			if s := r.Status(); s.Since.Sub(start) != step.want || (s.Err == "") != (step.err == nil) || s.State != StateOf(step.err) {
				t.Errorf("step %d: %+v after %v", i, s, s.Since.Sub(start))
			}
		}
	})
}

func TestManyPeersAreOneReason(t *testing.T) {
	r, _ := newReporter()
	var errs []error
	for range 1000 {
		errs = append(errs, &PeerError{Err: errors.New("refused")})
	}
	err := errors.Join(errs...)
	r.Publish(StateOf(err), err)
	if s := r.Status(); !strings.HasSuffix(s.Err, "refused; and 999 more") || len(s.Err) > 100 {
		t.Errorf("got %q", s.Err)
	}
}

// A published status never changes: whoever has it may read it without a lock.
func TestRepairsAreCountedByKind(t *testing.T) {
	r, _ := newReporter()
	r.Publish(StateOK, nil, ObjectStatus{Kind: "route", Wanted: 3, Have: 3}, ObjectStatus{Kind: "device", Wanted: 1, Have: 1})
	before := r.Status()
	r.Repaired(Change{OpAdd, "route", "10.5.2.0/24", "", "via 10.5.2.0"}, Change{OpDelete, "route", "10.5.3.0/24", "", ""})
	r.Repaired()
	r.Publish(StateOK, nil) // keeps the counts of objects
	got := r.Status().Objects
	if len(got) != 2 || got[0].Repairs != 2 || got[0].LastRepair.IsZero() || got[0].Wanted != 3 || got[1].Repairs != 0 {
		t.Errorf("got %+v", got)
	}
	want := []ObjectStatus{{Kind: "route", Wanted: 3, Have: 3}, {Kind: "device", Wanted: 1, Have: 1}}
	if diff := cmp.Diff(want, before.Objects); diff != "" {
		t.Error(diff)
	}
}

// Each repair has a line, but for those that somebody keeps undoing: he is named once.
func TestRepairsAreLoggedUnlessFought(t *testing.T) {
	r, log := newReporter()
	many := make([]Change, 3000)
	for i := range many {
		many[i] = Change{Op: OpAdd, Kind: "route", Key: fmt.Sprint("r", i), Is: "x"}
	}
	lines := func(changes ...Change) int {
		log.Reset()
		r.Repaired(changes...)
		return strings.Count(log.String(), "\n")
	}
	if n := lines(many[0]); n != 1 || !strings.Contains(log.String(), "change.key=r0") || !strings.Contains(log.String(), "part=part") {
		t.Errorf("%d lines: %s", n, log)
	}
	fights := 0
	for range 20 {
		if n := lines(many[0]); strings.Contains(log.String(), "keeps undoing") {
			fights++
		} else if n > 1 || n == 0 && fights == 0 {
			t.Errorf("%d lines: %s", n, log)
		}
	}
	_, held := r.Held(many[0])
	r.Repaired(many[1])
	if _, other := r.Held(many[1]); fights != 1 || !held || other || !r.Fights() {
		t.Errorf("%d lines of the fight; held %v, and another object %v", fights, held, other)
	}
	many = many[2:]
	if n := lines(many...); n != repairLines+1 || !strings.Contains(log.String(), fmt.Sprintf("more=%d", len(many)-repairLines)) {
		t.Errorf("%d lines: %s", n, log)
	}
}

// A fight is one over an object, whatever is put there each time and however rarely it is looked at; faults of several
// kinds of one device are no fight.
func TestFightsAreNamedOnce(t *testing.T) {
	was := func(kind, key, format string) func(i int) Change {
		return func(i int) Change { return Change{OpReplace, kind, key, fmt.Sprintf(format, i), "x"} }
	}
	faults := []string{"MAC a", "name b", "down", "mtu 7", "further addresses", "alias c"}
	for _, c := range []struct {
		name   string
		every  time.Duration
		change func(i int) Change
		lines  int
		fights int
	}{
		{"another value each time", time.Second, was("sysctl", "net/ipv4/ip_forward", "%d"), 4, 1},
		{"another MAC each time", time.Second, was(KindDevice, "flannel.1", "MAC %d"), 4, 1},
		{"one fault of a device after the other", time.Second, func(i int) Change {
			return Change{OpReplace, KindDevice, "flannel.1", faults[i%len(faults)], "x"}
		}, 24, 0},
		{"at each rare look", 5 * time.Second, was("rule set", "ipv4", ""), 4, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, log := newReporter()
				if c.every > time.Second {
					r.Polls(c.every)
				}
				for i := range 24 {
					r.Repaired(c.change(i))
					time.Sleep(c.every)
				}
				if n, fights := strings.Count(log.String(), "repaired what"), strings.Count(log.String(), "keeps undoing"); n != c.lines || fights != c.fights {
					t.Errorf("%d repairs and %d fights in the log, want %d and %d", n, fights, c.lines, c.fights)
				}
			})
		})
	}
}

// TestFightsAreWarnings: while somebody keeps undoing a repair, the status warns of it, whatever else the part says, and
// the log has its end.
func TestFightsAreWarnings(t *testing.T) {
	route := Change{OpAdd, "route", "10.5.2.0/24", "", "via 10.5.2.0"}
	for _, c := range []struct {
		name   string
		polls  time.Duration
		change Change
		want   string
		calm   time.Duration
	}{
		{"a route", 0, route, "somebody keeps undoing the repair of route 10.5.2.0/24, part part", 10 * time.Second},
		{"a device", 0, Change{OpReplace, KindDevice, "flannel.1", "mtu 1300", ""}, "somebody keeps undoing the repair of device flannel.1 (mtu), part part", 10 * time.Second},
		{"at rare looks", 30 * time.Second, Change{OpReplace, "rule set", "ipv4", "", ""}, "somebody keeps undoing the repair of rule set ipv4, part part", 32 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, log := newReporter()
				r.Polls(c.polls)
				other := Warning{ID: "a", Text: "a is wrong"}
				texts := func() (all []string) {
					synctest.Wait()
					for _, w := range r.Status().Warnings {
						all = append(all, w.Text)
					}
					return all
				}
				check := func(when string, want ...string) {
					t.Helper()
					if diff := cmp.Diff(want, texts()); diff != "" {
						t.Errorf("%s: %s", when, diff)
					}
				}
				var began time.Time
				for i := range 30 {
					if i > 0 {
						time.Sleep(max(time.Second, c.polls))
					}
					switch r.Repaired(c.change); {
					case i == 3:
						check("before the fight")
					case i == 4:
						began = time.Now()
						check("in the fight", c.want)
						r.Warn(other)
					case i > 4:
						check("in the fight", other.Text, c.want)
					}
				}
				if w := r.Status().Warnings[1]; w.ID != WarnFought || !w.Since.Equal(began) || !strings.Contains(w.Fix, "monitor") {
					t.Errorf("got %+v, want it since %v", w, began)
				}
				time.Sleep(c.calm - time.Second)
				check("a second too early", other.Text, c.want)
				time.Sleep(2 * time.Second)
				check("after the fight", other.Text)
				for part, want := range map[string]int{"level=WARN msg=\"" + c.want: 1, "level=INFO msg=\"resolved: " + c.want: 1} {
					if got := strings.Count(log.String(), part); got != want {
						t.Errorf("%q: %d times, want %d:\n%s", part, got, want, log)
					}
				}
			})
		})
	}
}

// TestFightsOverMuch: however much is fought over, the status names a few objects of it.
func TestFightsOverMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newReporter()
		for range 10 {
			for i := range 40 {
				r.Repaired(Change{Op: OpAdd, Kind: "route", Key: fmt.Sprint("r", i)})
			}
		}
		if n := len(r.Status().Warnings); n != repairLines {
			t.Errorf("%d warnings", n)
		}
	})
}

func TestReporterIsForSeveralGoroutines(t *testing.T) {
	r, _ := newReporter()
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for range 100 {
				r.Publish(StateOK, nil, ObjectStatus{Kind: "route", Wanted: i})
				r.Repaired(Change{Kind: "route"})
				_ = r.Status()
			}
		})
	}
	all.Wait()
	r.Publish(StateOK, nil)
	if got := r.Status().Objects[0].Repairs; got != 400 {
		t.Errorf("%d repairs", got)
	}
}

// A warning is one line when it comes and one when it goes, whatever is said in between, and since tells when it came.
func TestWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, log := newReporter()
		start := time.Now()
		a, b := Warning{ID: "a", Text: "a is wrong", Fix: "do a"}, Warning{ID: "b", Text: "b is wrong"}
		for range 3 {
			r.Warn(a)
			time.Sleep(time.Second)
		}
		r.Warn(a, b)
		if w := r.Status().Warnings; len(w) != 2 || !w[0].Since.Equal(start) || w[1].Since.Sub(start) != 3*time.Second || w[0].Fix != "do a" {
			t.Errorf("got %+v", w)
		}
		r.Publish(StateOK, nil)
		if w := r.Status().Warnings; len(w) != 2 {
			t.Errorf("gone with another status: %+v", w)
		}
		r.Warn(b)
		r.Warn()
		if w := r.Status().Warnings; len(w) != 0 {
			t.Errorf("got %+v", w)
		}
		text := log.String()
		for part, want := range map[string]int{`level=WARN msg="a is wrong" id=a fix="do a"`: 1, `level=INFO msg="resolved: a is wrong" id=a`: 1, "b is wrong": 2, "\n": 4} {
			if got := strings.Count(text, part); got != want {
				t.Errorf("%q: %d times, want %d:\n%s", part, got, want, text)
			}
		}
	})
}

// TestWarningsAreThereBeforeTheirLines: what the log says is in the status already.
func TestWarningsAreThereBeforeTheirLines(t *testing.T) {
	var r *Reporter
	var seen []int
	look := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.MessageKey {
			seen = append(seen, len(r.Status().Warnings))
		}
		return a
	}
	r = NewReporter(slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{ReplaceAttr: look})), "part")
	r.Warn(Warning{ID: "a", Text: "one"}, Warning{ID: "b", Text: "two"})
	r.Warn()
	if want := []int{2, 2, 0, 0}; !slices.Equal(seen, want) {
		t.Errorf("with each line the status had %v warnings, want %v", seen, want)
	}
}

// A warning that comes and goes all the time fills no log.
func TestWarningsThatComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, log := newReporter()
		for range 500 {
			r.Warn(Warning{ID: "a", Text: "a is wrong"})
			time.Sleep(time.Second)
			r.Warn()
			time.Sleep(time.Second)
		}
		if n := strings.Count(log.String(), "\n"); n > 14 {
			t.Errorf("%d lines:\n%s", n, log)
		}
	})
}
