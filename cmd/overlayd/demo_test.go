package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestDemo: the whole demo succeeds beside what one that was killed left, and leaves nothing behind, of that neither.
func TestDemo(t *testing.T) {
	ofDemo := func(path string) bool { return strings.HasPrefix(filepath.Base(path), "overlayd-demo-") }
	namespaces := func() []string {
		names, err := filepath.Glob("/run/netns/*")
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	links := func() (names []string) {
		all, err := net.Interfaces()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range all {
			names = append(names, l.Name)
		}
		return names
	}
	namespacesBefore, linksBefore := slices.DeleteFunc(namespaces(), ofDemo), links()
	if !slices.ContainsFunc(namespaces(), ofDemo) {
		if out, err := exec.Command("ip", "netns", "add", "overlayd-demo-host1").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	began := time.Now()
	if code, out := overlayd(t, "demo"); code != 0 || !strings.Contains(out, "Removed what an earlier demo left (namespaces: ") {
		t.Fatalf("exit code %d:\n%s", code, out)
	} else {
		t.Logf("after %s:\n%s", time.Since(began), out)
	}
	if took := time.Since(began); took > 90*time.Second {
		t.Errorf("took %s", took)
	}
	if after := namespaces(); !slices.Equal(after, namespacesBefore) {
		t.Errorf("namespaces %v, were %v", after, namespacesBefore)
	}
	if after := links(); !slices.Equal(after, linksBefore) {
		t.Errorf("links %v, were %v", after, linksBefore)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "overlayd-demo*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
