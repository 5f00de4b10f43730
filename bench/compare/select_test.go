package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestSelectJobs(t *testing.T) {
	list := candidates("overlayd", "Linux", []tier{{}, {"plain", []string{"--x"}}})
	var all []string
	for _, c := range list {
		for _, r := range c.rows {
			all = append(all, r.name)
		}
	}
	for _, c := range []struct {
		only string
		want map[string]string // rows by underlay
	}{
		{"", map[string]string{"default": strings.Join(all, "|"), "wire": strings.Join(all, "|")}},
		{"^default/nebula", map[string]string{"default": reference + "|nebula"}},
		{"wire/overlayd userspace→", map[string]string{"wire": reference + "|overlayd userspace→kernel|overlayd userspace→kernel, plain"}},
		{"tinc", map[string]string{"default": reference + "|tinc", "wire": reference + "|tinc"}},
		{"^wire/kernel vxlan$", map[string]string{"wire": reference}},
		{"nobody", nil},
	} {
		var only *regexp.Regexp
		if c.only != "" {
			only = regexp.MustCompile(c.only)
		}
		jobs := selectJobs(only, list)
		if len(jobs) != len(c.want) {
			t.Errorf("--only %q: %d underlays, want %d", c.only, len(jobs), len(c.want))
		}
		for _, j := range jobs {
			var rows []string
			for _, cand := range j.candidates {
				for _, r := range cand.rows {
					rows = append(rows, r.name)
				}
			}
			slots := len(rows)
			for _, k := range costs() {
				if slices.Contains(rows, k.row) && slices.Contains(rows, k.beside) {
					slots += costSlots
				}
			}
			if got := strings.Join(rows, "|"); got != c.want[j.underlay.name] || j.slots() != slots {
				t.Errorf("--only %q, %s: %d slots, rows %s, want %s", c.only, j.underlay.name, j.slots(), got, c.want[j.underlay.name])
			}
		}
	}
}

// TestCandidatesAreDistinct: names are directories and keys of the report.
func TestCandidatesAreDistinct(t *testing.T) {
	var names, rows []string
	for _, c := range candidates("overlayd", "Linux", []tier{{}, {"plain", []string{"--x"}}}) {
		names = append(names, c.name)
		for _, r := range c.rows {
			rows = append(rows, r.name)
		}
	}
	for _, list := range [][]string{names, rows} {
		slices.Sort(list)
		if n := len(list); n != len(slices.Compact(list)) {
			t.Errorf("twice the same in %v", list)
		}
	}
	if !slices.Contains(rows, reference) {
		t.Errorf("no row is the reference %q", reference)
	}
}

func TestFirstVersion(t *testing.T) {
	for _, c := range []struct{ out, want string }{
		{"wireguard-go v0.0.20220316\n\nUserspace WireGuard daemon\n", "wireguard-go v0.0.20220316"},
		{"Version: 1.6.1\n", "Version: 1.6.1"},
		{"warning\n tinc version 1.0.36\n", "tinc version 1.0.36"},
		{"OpenVPN 2.6.14 x86_64-pc-linux-gnu [SSL (OpenSSL)] [LZO]\nlibrary versions: 3\n", "OpenVPN 2.6.14 x86_64-pc-linux-gnu"},
		{"no digits", "unknown version"},
		{"", "unknown version"},
	} {
		if got := firstVersion(c.out); got != c.want {
			t.Errorf("%q: got %q, want %q", c.out, got, c.want)
		}
	}
}
