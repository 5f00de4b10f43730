package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestWorkDirRemovesWhatKilledRunsLeft, and nothing of a run that lives or of others.
func TestWorkDirRemovesWhatKilledRunsLeft(t *testing.T) {
	netnstest.RequireRoot(t) // others' directories are left alone
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	for _, dir := range []string{workDirPrefix + "killed/default/veth/a", "overlayd-other"} {
		if err := os.MkdirAll(filepath.Join(tmp, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(tmp, workDirPrefix+"file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(tmp, filepath.Join(tmp, workDirPrefix+"link")); err != nil {
		t.Fatal(err)
	}
	first, err := newWorkDir()
	if err != nil {
		t.Fatal(err)
	}
	second, err := newWorkDir()
	if err != nil {
		t.Fatal(err)
	}
	list := func() (names []string) {
		entries, err := os.ReadDir(tmp)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	want := []string{filepath.Base(first.path), filepath.Base(second.path), workDirPrefix + "file", workDirPrefix + "link", "overlayd-other"}
	slices.Sort(want)
	if diff := cmp.Diff(want, list()); diff != "" {
		t.Errorf("while two runs live (-want +got):\n%s", diff)
	}
	if err := errors.Join(first.remove(), second.remove()); err != nil {
		t.Fatal(err)
	}
	if got := list(); len(got) != 3 {
		t.Errorf("after both have ended there is %v", got)
	}
	t.Setenv("TMPDIR", filepath.Join(tmp, "nowhere"))
	if w, err := newWorkDir(); err == nil {
		t.Errorf("made %s below what is not there", w.path)
	}
}

// TestAgentEnv: the caller's settings of overlayd would change what is measured.
func TestAgentEnv(t *testing.T) {
	got := agentEnv([]string{"PATH=/bin", "OVERLAYD_DATAPLANE=kernel", "FLANNELD_IFACE=x", "NOTIFY_SOCKET=/run/x", "MY_OVERLAYD_X=1", "HOME=/root"})
	if want := []string{"PATH=/bin", "MY_OVERLAYD_X=1", "HOME=/root"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestWays: the first host sends unless the row is reversed.
func TestWays(t *testing.T) {
	p := &pair{a: &host{name: "a"}, b: &host{name: "b"}}
	for reversed, want := range map[bool]string{false: "ab", true: "ba"} {
		if w := p.way(row{reversed: reversed}); w.from.name+w.to.name != want {
			t.Errorf("reversed %v: from %s to %s", reversed, w.from.name, w.to.name)
		}
	}
	addrs := p.setOverlay()
	if addrs[0] == addrs[1] || addrs[0].Masked() != addrs[1].Masked() || p.a.overlay != addrs[0].Addr() || p.b.overlay != addrs[1].Addr() {
		t.Errorf("overlay addresses are %v, %s and %s", addrs, p.a.overlay, p.b.overlay)
	}
}

func TestNewProgram(t *testing.T) {
	bin := t.TempDir()
	for name, script := range map[string]string{"fails": "echo 'fails 1.2 [x]'; exit 1", "silent": "exit 0", "other": "echo other 3"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":/bin:/usr/bin")
	for _, c := range []struct {
		name      string
		candidate candidate
		want      program
		text      string
	}{
		{"exits with 1 after its version", candidate{name: "c", needs: []string{"fails"}, version: []string{"fails", "-v"}, note: "n"},
			program{Name: "c", Version: "fails 1.2", Note: "n"}, "c: fails 1.2; n"},
		{"says nothing", candidate{name: "c", needs: []string{"silent"}, version: []string{"silent"}}, program{Name: "c", Version: "unknown version"}, "c: unknown version; "},
		{"second program missing", candidate{name: "c", needs: []string{"other", "none-such"}, version: []string{"other"}},
			program{Name: "c", Missing: "no none-such on this machine"}, "c: missing: no none-such on this machine"},
		{"known version", candidate{name: "c", versionText: "Linux 7", note: "n"}, program{Name: "c", Version: "Linux 7", Note: "n"}, "c: Linux 7; n"},
	} {
		got := newProgram(t.Context(), c.candidate)
		if *got != c.want || got.text() != c.text {
			t.Errorf("%s: got %+v, %q", c.name, *got, got.text())
		}
	}
}

// TestUnknownFiguresAreNotZero: what was not measured is absent from the report, not 0.
func TestUnknownFiguresAreNotZero(t *testing.T) {
	r := newRowReport("x", []figures{nil, {"tcp1_gbit_s": 1}}, nil)
	if len(r.Metrics) != 1 || len(r.Metrics["tcp1_gbit_s"].Values) != 1 {
		t.Errorf("got %+v", r.Metrics)
	}
	u := underlayReport{Rows: []rowReport{newRowReport(reference, []figures{{"tcp1_gbit_s": 0}}, nil), r}}
	u.addRatios(reference)
	if got := u.Rows[1].Metrics["tcp1_gbit_s"].Ratio; got != 0 {
		t.Errorf("the ratio to nothing is %v", got)
	}
	u.addRatios("nobody")
	b, err := json.Marshal(u)
	if err != nil || strings.Contains(string(b), "ratio") || strings.Contains(string(b), "tcp8") {
		t.Errorf("%s, %v", b, err)
	}
}

func TestProgressShowsTheFigures(t *testing.T) {
	text := figures{"tcp1_gbit_s": 1.25, "udp64_kpps": 200, "load_rtt_p99_ms": 3.5}.text()
	wants(t, "progress", text, "TCP  1.25  0.00 Gbit/s", "UDP  200.0", "under TCP   3.50 ms")
}
