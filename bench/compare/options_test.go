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
