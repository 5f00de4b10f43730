package cniinstall

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// TestTwoInstallers: two pods of a Node during an update install beside each other. With the same program and config neither undoes the other; with
// others each puts its own back once a minute after a while, and says so once. Alone again, one is as before.
func TestTwoInstallers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		program string
		writes  int // in five minutes, of one file
		lines   int // of one installer
	}{"the same": {"program 1", 2, 0}, "another": {"program 2", 2 + 2*(4+5), 5}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.ConfOut, w.Names = "", []string{"flannel"}
			other := w.Config
			other.Plugin = filepath.Join(t.TempDir(), "overlayd-cni")
			w.file(other.Plugin, c.program)
			path := filepath.Join(w.BinDir, "flannel")
			synctest.Test(t, func(*testing.T) {
				both := []*Installer{New(w.Config), New(other)}
				var last fs.FileInfo
				writes := 0
				for began := time.Now(); time.Since(began) < 5*time.Minute; time.Sleep(period) {
					for _, i := range both {
						w.look(i)
						if now, err := os.Lstat(path); err != nil {
							t.Fatal(err)
						} else if !same(now, last) {
							writes++
							last = now
						}
					}
				}
				if writes != c.writes {
					t.Errorf("%d writes, want %d", writes, c.writes)
				}
				if n := w.log.Count("level=WARN"); n != 2*c.lines {
					t.Errorf("%d lines, want %d:\n%s", n, 2*c.lines, w.log)
				}
				time.Sleep(truce)
				w.look(both[1])
				w.is(path, c.program, 0o755)
			})
		})
	}
}

// TestModeRestored: a plugin that nobody can run any more is mended.
func TestModeRestored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ConfOut = ""
	i := New(w.Config)
	w.look(i)
	path := filepath.Join(w.BinDir, "flannel")
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	w.look(i)
	w.is(path, "program 1", 0o755)
}

// TestHolds: one byte more, less or other is not the same file.
func TestHolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	long := make([]byte, 70<<10)
	for _, other := range []string{string(long), string(long[1:]), string(long) + "x", string(long[1:]) + "x", ""} {
		path := filepath.Join(t.TempDir(), "x")
		w.file(path, other)
		w.file(w.Plugin, string(long))
		if got := holds(path, openFile(w.Plugin)); got != (other == string(long)) {
			t.Errorf("%d bytes: %v", len(other), got)
		}
	}
	if holds("/nowhere", openFile(w.Plugin)) || holds(w.Plugin, openFile("/nowhere")) {
		t.Error("no file is as one")
	}
}
