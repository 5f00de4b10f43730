package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		args   string
		rounds int
		budget time.Duration
		tiers  []tier
	}{
		{"", fullRounds, fullBudget, tiers()},
		{"--quick", quickRounds, quickBudget, tiers()},
		{"-quick -rounds 3", 3, quickBudget, tiers()},
		{"--budget 30s --tier x=--debug-offloads=-a,-b", fullRounds, 30 * time.Second, append(tiers(), tier{"x", []string{"--debug-offloads=-a,-b"}})},
	} {
		o, err := parseOptions(strings.Fields(c.args))
		if err != nil {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		if o.rounds != c.rounds || o.budget != c.budget || !filepath.IsAbs(o.overlayd) {
			t.Errorf("%q: got %+v", c.args, o)
		}
		if diff := cmp.Diff(c.tiers, o.tiers, cmp.AllowUnexported(tier{})); diff != "" {
			t.Errorf("%q: tiers (-want +got):\n%s", c.args, diff)
		}
	}
}

// TestEarlierRows: an earlier program has rows of its own, which differ by the program alone.
func TestEarlierRows(t *testing.T) {
	o, err := parseOptions([]string{"--before", "old"})
	if err != nil || !filepath.IsAbs(o.before) {
		t.Fatalf("%q, %v", o.before, err)
	}
	rows := map[string]candidate{}
	names := map[string]int{}
	for _, c := range append(candidates("new", "Linux", o.tiers), earlier(o.before, o.tiers)...) {
		names[c.name]++
		rows[c.rows[0].name] = c
	}
	for name, n := range names {
		if n > 1 {
			t.Errorf("%d candidates %s", n, name)
		}
	}
	for _, name := range []string{"overlayd kernel", "overlayd userspace", "overlayd userspace, socket", "overlayd userspace, plain"} {
		now, then := rows[name], rows[name+before]
		if now.needs[0] != "new" || then.setup == nil || then.needs[0] != o.before || then.note != now.note {
			t.Errorf("%s: %v %q, before: %v %q", name, now.needs, now.note, then.needs, then.note)
		}
	}
}

func TestWrongOptionsAreNamed(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--rounds -1", "--rounds: -1"},
		{"--rounds x", "rounds"},
		{"--budget -5s", "--budget: -5s"},
		{"--only (", "--only"},
		{"--tier plain", "<name>=<flags>"},
		{"--tier =x", "<name>=<flags>"},
		{"all", `unexpected argument "all"`},
	} {
		if _, err := parseOptions(strings.Fields(c.args)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want an error with %q", c.args, err, c.want)
		}
	}
}
