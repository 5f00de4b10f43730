package nodefile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/processtest"
)

// TestNodeFileForms: what a daemon makes of each text that may stand in a node file: its ID and its
// leftovers, or an ID of its own.
func TestNodeFileForms(t *testing.T) {
	id := strings.Repeat("0a", idLen/2)
	for _, c := range []struct {
		name, text string
		kept       bool // the ID is that of the text
		want       Left
	}{
		{"ID only, as the first daemons wrote it", id, true, Left{}},
		{"ID and line end", id + "\n", true, Left{}},
		{"with leftovers", id + "\nvni 7\nnetwork 10.5.0.0/16\n", true, Left{VNIs: []uint32{7}, Networks: prefixes("10.5.0.0/16")}},
		{"half a line", id + "\nvni 7\nnetwork 10.5.0.0/1", true, Left{VNIs: []uint32{7}}},
		{"unknown lines of a later daemon", id + "\ncluster x\nvni 7\n", true, Left{VNIs: []uint32{7}}},
		{"capital hexadecimal digits", strings.ToUpper(id) + "\n", true, Left{}},
		{"half an ID", id[:idLen-1], false, Left{}},
		{"half an ID, then leftovers", id[:idLen-4] + "\nvni 7\n", false, Left{}},
		{"empty", "", false, Left{}},
		{"zeroes, as after a crash of the host", strings.Repeat("\x00", 200), false, Left{}},
		{"not hexadecimal", strings.Repeat("xy", idLen/2) + "\nvni 7\n", false, Left{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "subnet.env")
			if err := os.WriteFile(Path(file), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			n, err := Claim(file)
			if err != nil {
				t.Fatal(err)
			}
			defer n.Release()
			if kept := strings.HasPrefix(c.text, n.ID); kept != c.kept || len(n.ID) != idLen || !reflect.DeepEqual(n.Left, c.want) {
				t.Errorf("ID %s, leftovers %v; want kept %v, %v", n.ID, n.Left, c.kept, c.want)
			}
			if b, err := os.ReadFile(Path(file)); err != nil || !strings.HasPrefix(string(b), n.ID) {
				t.Errorf("the file has %q, %v", b, err)
			}
			if err := n.Remember(Left{VNIs: []uint32{9}}); err != nil {
				t.Fatal(err)
			}
			want := n.ID + "\nvni 9\n"
			if !c.kept {
				want += "wrote -1\n"
			}
			if b, err := os.ReadFile(Path(file)); err != nil || string(b) != want {
				t.Errorf("then the file has %q, %v", b, err)
			}
		})
	}
}

// TestNodeFileTooLarge: only its beginning is read, and it is as short as it should be afterwards.
func TestNodeFileTooLarge(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	text := strings.Repeat("0a", idLen/2) + "\nvni 7\n" + strings.Repeat("#", maxNodeFile) + "\nvni 8\n"
	if err := os.WriteFile(Path(file), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := Claim(file)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Release()
	if !slices.Equal(n.Left.VNIs, []uint32{7}) {
		t.Errorf("leftovers %v", n.Left)
	}
	if err := n.Remember(n.Left); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(Path(file)); err != nil || info.Size() != idLen+1+6 {
		t.Errorf("%d bytes, %v", info.Size(), err)
	}
}

// TestPlacesForNoNodeFile: a daemon follows no link that somebody has put there, and says so when
// the file cannot be made.
func TestPlacesForNoNodeFile(t *testing.T) {
	dir := t.TempDir()
	victim, plain := filepath.Join(dir, "victim"), filepath.Join(dir, "plain")
	for _, file := range []string{victim, plain} {
		if err := os.WriteFile(file, []byte("precious"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, path := range map[string]string{
		"link":                    filepath.Join(dir, "linked.env"),
		"directory":               filepath.Join(dir, "taken.env"),
		"below a file":            filepath.Join(plain, "subnet.env"),
		"link that leads nowhere": filepath.Join(dir, "dangling.env"),
		"FIFO":                    filepath.Join(dir, "fifo.env"),
	} {
		var err error
		switch name {
		case "link":
			err = os.Symlink(victim, Path(path))
		case "directory":
			err = os.Mkdir(Path(path), 0o700)
		case "link that leads nowhere":
			err = os.Symlink(filepath.Join(dir, "made"), Path(path))
		case "FIFO":
			err = unix.Mkfifo(Path(path), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		n, err := Claim(path)
		if err == nil || errors.As(err, new(*RunningError)) {
			t.Errorf("%s: %+v, %v; want an error", name, n, err)
		}
		if name == "FIFO" { // keeps nobody waiting who only asks
			_, _, herr := Holder(path)
			_, lerr := LastLeft(path)
			for _, err := range []error{err, herr, lerr} {
				if err == nil || !strings.Contains(err.Error(), Path(path)+": want a regular file, not a FIFO") {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "precious" {
		t.Errorf("the target of the link has %q, %v", b, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "made")); err == nil {
		t.Error("the target of the other link was made")
	}
}

// TestOneOfMany: of several processes that claim one file at a time one gets it, also if a reader's
// lock makes each of them replace the file.
func TestOneOfMany(t *testing.T) {
	t.Parallel()
	for name, reader := range map[string]bool{"plain": false, "a reader has it": true} {
		file := filepath.Join(t.TempDir(), "subnet.env")
		id := strings.Repeat("0b", idLen/2)
		if err := os.WriteFile(Path(file), []byte(id+"\nvni 7\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if reader {
			f, err := os.Open(Path(file))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK}); err != nil {
				t.Fatal(err)
			}
		}
		lines := make([]string, 6)
		var group sync.WaitGroup
		for i := range lines {
			group.Go(func() { lines[i], _ = processtest.Run(t, asHolder, file) })
		}
		group.Wait()
		won := slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return !strings.HasSuffix(l, "<nil>") })
		if len(won) != 1 {
			t.Errorf("%s: %d claims: %q", name, len(won), lines)
			continue
		}
		pid, _, _ := strings.Cut(won[0], " ")
		if got, held, err := Holder(file); fmt.Sprint(got) != pid || !held || err != nil {
			t.Errorf("%s: running: %d, %v, %v; want %s", name, got, held, err, pid)
		}
		if b, err := os.ReadFile(Path(file)); err != nil || string(b) != id+"\nvni 7\n" {
			t.Errorf("%s: the file has %q, %v", name, b, err)
		}
		if _, err := os.Stat(Path(file) + ".new"); err == nil {
			t.Errorf("%s: a copy is left", name)
		}
	}
}

// TestCopyThatWasLeft: a daemon that died while it replaced a file keeps no later one from doing so.
func TestCopyThatWasLeft(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	id := strings.Repeat("0b", idLen/2)
	for path, text := range map[string]string{Path(file): id + "\n", Path(file) + ".new": strings.Repeat("junk", 100)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(Path(file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK}); err != nil {
		t.Fatal(err)
	}
	n, err := Claim(file)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Release()
	if b, err := io.ReadAll(io.NewSectionReader(n.file, 0, 1<<20)); n.ID != id || err != nil || string(b) != id+"\n" {
		t.Errorf("ID %s, the file has %q, %v", n.ID, b, err)
	}
}

// TestClaimOfRemovedFile: a file that is removed and made again is another one: its claim holds.
func TestClaimOfRemovedFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	stale, err := os.OpenFile(Path(file), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer stale.Close()
	if err := os.Remove(Path(file)); err != nil {
		t.Fatal(err)
	}
	n, err := Claim(file)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Release()
	if _, held, err := Holder(file); !held && err == nil {
		t.Log("the holder is this process") // OFD locks of one process exclude each other too
	}
	if _, err := Claim(file); !errors.As(err, new(*RunningError)) {
		t.Errorf("a second claim: %v", err)
	}
}

// TestWithoutFile: a daemon that could make no node file remembers nothing, and goes on.
func TestWithoutFile(t *testing.T) {
	var none *File
	none.Release()
	if err := errors.Join(none.Remember(Left{}), none.Wrote(time.Now())); err != nil {
		t.Error(err)
	}
}
