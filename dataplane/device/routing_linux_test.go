package device

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

func TestReasonsAgainstOneRoute(t *testing.T) {
	network, network6 := netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd42::/48")
	other := []rtnl.OtherRoute{{Dst: network, Link: 3, Text: "10.42.0.0/16 dev docker0 proto kernel"}}
	for _, c := range []struct {
		name, underlay string
		others         []rtnl.OtherRoute
		want4, want6   string
	}{
		{"nothing", "", nil, "", ""},
		{"an address", "10.42.7.7/32", nil, "it holds 10.42.7.7 of the underlay", ""},
		{"an on-link prefix", "fd42:0:0:9::/64", nil, "", "it holds fd42:0:0:9::/64 of the underlay"},
		{"a route of others", "", other, "somebody else has a route to it: 10.42.0.0/16 dev docker0 proto kernel", ""},
		{"both", "10.42.7.7/32", other, "somebody else has a route to it: 10.42.0.0/16 dev docker0 proto kernel", ""},
	} {
		w := dataplane.Wanted{Networks: []netip.Prefix{network, network6}}
		if c.underlay != "" {
			w.Underlay = []netip.Prefix{netip.MustParsePrefix(c.underlay)}
		}
		got := reasonsAgainst(w, c.others)
		if got[network] != c.want4 || got[network6] != c.want6 {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

// TestSaysOfARouteThatComesAndGoes: the log has a decision once, and its end, however often it changes.
func TestSaysOfARouteThatComesAndGoes(t *testing.T) {
	var log strings.Builder
	r := &routing{log: slog.New(slog.NewTextHandler(&log, nil)), said: map[netip.Prefix]bool{}}
	network := netip.MustParsePrefix("10.42.0.0/16")
	for range 30 {
		for _, reasons := range []map[netip.Prefix]string{{network: "somebody else has a route to it"}, {}} {
			if !r.say([]netip.Prefix{network}, reasons) {
				t.Error("a decision is taken for the last one")
			}
		}
	}
	if n := strings.Count(log.String(), "overlay routes: "); n != 2 {
		t.Errorf("%d lines, want 2:\n%s", n, log.String())
	}
}

// TestRoutesOfOthersThatCannotBeRead: those known before count, and they are read again.
func TestRoutesOfOthersThatCannotBeRead(t *testing.T) {
	errRead := errors.New("dump interrupted")
	r := &routing{}
	nothing, known, later := &others{}, &others{}, &others{}
	for i, c := range []struct {
		now, want *others
		err       error
	}{{nothing, nothing, errRead}, {known, known, nil}, {nothing, known, errRead}, {nothing, known, errRead}, {later, later, nil}} {
		got := r.learn(c.now, c.err)
		if again := r.dirty.Swap(false); got != c.want || r.others.Load() != c.want || again != (c.err != nil) {
			t.Errorf("step %d: got %p, stored %p, another look: %v; want %p", i, got, r.others.Load(), again, c.want)
		}
	}
}
