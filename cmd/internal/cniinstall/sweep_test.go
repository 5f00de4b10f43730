package cniinstall

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestSwept: what an installer left that was killed while it wrote is removed; what another one writes at the moment, or is somebody else's, stays.
func TestSwept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, dir := range []string{w.BinDir, filepath.Dir(w.ConfOut)} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, age := range map[string]time.Duration{".overlayd-1": time.Hour, ".overlayd-2": time.Minute, ".other": time.Hour, "bridge": time.Hour} {
			path, at := filepath.Join(dir, name), time.Now().Add(-age)
			w.file(path, name)
			if err := os.Chtimes(path, at, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	i := New(w.Config)
	w.look(i)
	for _, dir := range []string{w.BinDir, filepath.Dir(w.ConfOut)} {
		for name, want := range map[string]bool{".overlayd-1": false, ".overlayd-2": true, ".other": true, "bridge": true} {
			if _, err := os.Lstat(filepath.Join(dir, name)); errors.Is(err, os.ErrNotExist) == want {
				t.Errorf("%s in %s: %v", name, dir, err)
			}
		}
	}
}
