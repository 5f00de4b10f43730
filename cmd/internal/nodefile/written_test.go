package nodefile

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestHasWritten: a subnet file is the daemon's if it has the time at which the daemon wrote it.
func TestHasWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	n, err := Claim(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { n.Release() }()
	check := func(what string, n *File, want bool) {
		t.Helper()
		if got := n.HasWritten(file); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	check("no file", n, true)
	replace(t, file)
	check("a file beside a new node file", n, false)
	check("no node file", nil, true)
	n.Release()
	if n, err = Claim(file); err != nil {
		t.Fatal(err)
	}
	check("a file beside a node file of a daemon that wrote none", n, false)
	check("a node file of an older daemon", &File{ID: n.ID}, true)
	at := time.Unix(1, 5)
	if err := os.Chtimes(file, at, at); err != nil {
		t.Fatal(err)
	}
	if err := n.Wrote(at); err != nil {
		t.Fatal(err)
	}
	check("written by the daemon", n, true)
	again := &File{file: n.file, path: n.path}
	if _, err := n.file.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	if err := again.read(); err != nil || again.written != at.UnixNano() {
		t.Errorf("the next run reads %d, %v", again.written, err)
	}
	check("of the run before", again, true)
	replace(t, file)
	check("written by somebody else", again, false)
}

// replace puts another file in the place of one.
func replace(t *testing.T, file string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte("FLANNEL_SUBNET=10.5.1.1/24\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}
