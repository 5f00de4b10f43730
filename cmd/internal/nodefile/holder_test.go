package nodefile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/processtest"
)

// TestFindDaemon: drain finds the one daemon that it can have been meant for, or says why not.
func TestFindDaemon(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name+".env") }
	pidOf := func(line string) (pid int) {
		if _, err := fmt.Sscanf(line, "%d <nil>", &pid); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		return pid
	}
	first, _ := processtest.Run(t, asHolder, file("red"))
	processtest.Run(t, asHolder, file("blue"))
	if err := os.WriteFile(Path(file("stale")), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		files []string
		held  []string
		err   error
	}{
		{"none", []string{file("none"), file("stale")}, nil, nil},
		{"one", []string{file("none"), file("red"), file("stale")}, []string{file("red")}, nil},
		{"two", []string{file("red"), file("blue")}, nil, ErrTwoDaemons},
	} {
		pid, held, err := FindDaemon(c.files)
		if !errors.Is(err, c.err) || !slices.Equal(held, c.held) || len(held) > 0 && pid != pidOf(first) {
			t.Errorf("%s: %d, %v, %v, want %v, %v", c.name, pid, held, err, c.held, c.err)
		}
	}
	if got := SubnetFilesIn(dir); !slices.Equal(got, []string{file("blue"), file("red"), file("stale")}) {
		t.Errorf("subnet files %v", got)
	}
}

// TestFindDaemonOfSeveral: one daemon may hold several files; with two it is not known which was
// meant, and both are named.
func TestFindDaemonOfSeveral(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name+".env") }
	pidOf := func(files ...string) int {
		line, _ := processtest.Run(t, asHolder, strings.Join(files, ":"))
		var pid int
		if _, err := fmt.Sscanf(line, "%d <nil>", &pid); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		return pid
	}
	first, second := pidOf(file("a"), file("b")), pidOf(file("c"))
	free, err := Claim(file("free"))
	if err != nil {
		t.Fatal(err)
	}
	free.Release()
	for _, c := range []struct {
		files []string
		pid   int
		held  []string
		says  string
	}{
		{nil, 0, nil, ""},
		{[]string{file("none"), file("free")}, 0, nil, ""},
		{[]string{file("a")}, first, []string{file("a")}, ""},
		{[]string{file("a"), file("free"), file("b")}, first, []string{file("a"), file("b")}, ""},
		{[]string{file("c"), file("none")}, second, []string{file("c")}, ""},
		{[]string{file("a"), file("c")}, 0, nil, fmt.Sprintf("that of %s (pid %d) and that of %s (pid %d)", file("a"), first, file("c"), second)},
	} {
		pid, held, err := FindDaemon(c.files)
		if pid != c.pid || !slices.Equal(held, c.held) || (err == nil) != (c.says == "") || err != nil && (!errors.Is(err, ErrTwoDaemons) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%q: %d, %q, %v; want %d, %q, %q", c.files, pid, held, err, c.pid, c.held, c.says)
		}
	}
}

// TestSubnetFilesIn: the files of several networks are those with a node file beside them.
func TestSubnetFilesIn(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b.env", "b.env.node", "a.env.node", "c.env", "d.node", "e.env.node.new"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{filepath.Join(dir, "a.env"), filepath.Join(dir, "b.env")}
	if got := SubnetFilesIn(dir); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := SubnetFilesIn(filepath.Join(dir, "none")); got != nil {
		t.Errorf("of no directory: %q", got)
	}
}
