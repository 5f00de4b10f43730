package main

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestDemo: the whole demo succeeds and leaves nothing behind.
func TestDemo(t *testing.T) {
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
	namespacesBefore, linksBefore := namespaces(), links()
	began := time.Now()
	if code, out := overlayd(t, "demo"); code != 0 {
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
