package nodefile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/processtest"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// What is remembered replaces the file: whoever has the old one open sees all of it, and the claim holds.
func TestFileIsReplaced(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	n, err := Claim(file)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Release()
	old, err := os.Open(Path(file))
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := n.Remember(Left{VNIs: []uint32{7}}); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	if k, _ := old.Read(b); string(b[:k]) != n.ID+"\nwrote -1\n" {
		t.Errorf("the old file has %q", b[:k])
	}
	if info, err := os.Stat(Path(file)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if line, _ := processtest.Run(t, asHolder, file); !strings.Contains(line, "another overlayd") {
		t.Errorf("another process claims it: %s", line)
	}
	if found, err := filepath.Glob(file + "*"); len(found) != 1 || err != nil {
		t.Errorf("files %q", found)
	}
}

// What the file has already is not written, which would wait for the disk when a daemon starts: unless somebody took the file away,
// opened it to others or changed it.
func TestFileIsLeftAlone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	path, left := Path(file), Left{VNIs: []uint32{7}}
	n, err := Claim(file)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Release()
	write := func() os.FileInfo {
		t.Helper()
		if err := n.Remember(left); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode() != 0o600 {
			t.Fatalf("%v, %v", info, err)
		}
		return info
	}
	now := write()
	if again := write(); !os.SameFile(now, again) {
		t.Error("it was written again")
	}
	for what, do := range map[string]func() error{
		"removed":  func() error { return os.Remove(path) },
		"readable": func() error { return os.Chmod(path, 0o644) },
		"replaced": func() error {
			return errors.Join(os.WriteFile(path+".x", []byte("x"), 0o600), os.Rename(path+".x", path))
		},
		"changed": func() error { return os.Truncate(path, 3) },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
		write()
		if b, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(b), n.ID+"\n") {
			t.Errorf("%s: the file has %q, %v", what, b, err)
		}
	}
}

// While a daemon writes its file again and again, nobody finds it without a holder or gets the claim.
func TestClaimHoldsWhileItIsWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	n, err := Claim(file)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Release()
	done := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		defer close(done)
		for i := range 100 {
			if err := n.Remember(Left{VNIs: []uint32{uint32(i)}}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
		}
		if _, held, err := Holder(file); !held || err != nil {
			t.Fatalf("no holder: %v", err)
		}
		if _, err := Claim(file); !errors.As(err, new(*RunningError)) {
			t.Fatalf("claimed a second time: %v", err)
		}
	}
	group.Wait()
}

// On a full disk the file stays as it was, with its claim.
func TestFullDisk(t *testing.T) {
	dir := netnstest.SmallDisk(t, "size=8k")
	file := filepath.Join(dir, "subnet.env")
	n, err := Claim(file)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Release()
	before, err := os.ReadFile(Path(file))
	if err != nil {
		t.Fatal(err)
	}
	os.WriteFile(filepath.Join(dir, "full"), make([]byte, 64<<10), 0o600) // as much as there is room for
	err = n.Remember(Left{VNIs: []uint32{7}})
	if err == nil || strings.Contains(err.Error(), ".tmp.") {
		t.Errorf("remember: %v", err)
	}
	if after, err := os.ReadFile(Path(file)); err != nil || string(after) != string(before) {
		t.Errorf("the file has %q, had %q: %v", after, before, err)
	}
	if err := n.Settle(); err == nil {
		t.Error("settled on a full disk")
	}
	if _, held, err := Holder(file); !held || err != nil {
		t.Errorf("no holder: %v", err)
	}
	other, err := Claim(filepath.Join(dir, "other.env")) // whose ID cannot be written
	if err != nil {
		t.Fatal(err)
	}
	defer other.Release()
	if err := os.Remove(filepath.Join(dir, "full")); err != nil {
		t.Fatal(err)
	}
	if err := n.Settle(); err != nil {
		t.Error(err)
	}
	if after, err := os.ReadFile(Path(file)); err != nil || !strings.Contains(string(after), "vni 7\n") {
		t.Errorf("with room the file has %q, %v", after, err)
	}
	if err := other.Settle(); err != nil {
		t.Error(err)
	}
	if id, err := os.ReadFile(other.path); err != nil || !strings.HasPrefix(string(id), other.ID) {
		t.Errorf("the other file has %q, %v", id, err)
	}
}
