package node

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

	"golang.org/x/sys/unix"
)

// TestNodeFileForms: what a daemon makes of each text that may stand in a node file: its ID and its
// leftovers, or an ID of its own.
func TestNodeFileForms(t *testing.T) {
	id := strings.Repeat("0a", idLen/2)
	for _, c := range []struct {
		name, text string
		kept       bool // the ID is that of the text
		want       leftovers
	}{
		{"ID only, as the first daemons wrote it", id, true, leftovers{}},
		{"ID and line end", id + "\n", true, leftovers{}},
		{"with leftovers", id + "\nvni 7\nnetwork 10.5.0.0/16\n", true, leftovers{vnis: []uint32{7}, networks: prefixes("10.5.0.0/16")}},
		{"half a line", id + "\nvni 7\nnetwork 10.5.0.0/1", true, leftovers{vnis: []uint32{7}}},
		{"unknown lines of a later daemon", id + "\ncluster x\nvni 7\n", true, leftovers{vnis: []uint32{7}}},
		{"capital hexadecimal digits", strings.ToUpper(id) + "\n", true, leftovers{}},
		{"half an ID", id[:idLen-1], false, leftovers{}},
		{"half an ID, then leftovers", id[:idLen-4] + "\nvni 7\n", false, leftovers{}},
		{"empty", "", false, leftovers{}},
		{"zeroes, as after a crash of the host", strings.Repeat("\x00", 200), false, leftovers{}},
		{"not hexadecimal", strings.Repeat("xy", idLen/2) + "\nvni 7\n", false, leftovers{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "subnet.env")
			if err := os.WriteFile(nodePath(file), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			n, err := claimNode(file)
			if err != nil {
				t.Fatal(err)
			}
			defer n.release()
			if kept := strings.HasPrefix(c.text, n.id); kept != c.kept || len(n.id) != idLen || !reflect.DeepEqual(n.left, c.want) {
				t.Errorf("ID %s, leftovers %v; want kept %v, %v", n.id, n.left, c.kept, c.want)
			}
			if b, err := os.ReadFile(nodePath(file)); err != nil || !strings.HasPrefix(string(b), n.id) {
				t.Errorf("the file has %q, %v", b, err)
			}
			if err := n.remember(leftovers{vnis: []uint32{9}}); err != nil {
				t.Fatal(err)
			}
			if b, err := os.ReadFile(nodePath(file)); err != nil || string(b) != n.id+"\nvni 9\n" {
				t.Errorf("then the file has %q, %v", b, err)
			}
		})
	}
}

// TestNodeFileTooLarge: only its beginning is read, and it is as short as it should be afterwards.
func TestNodeFileTooLarge(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	text := strings.Repeat("0a", idLen/2) + "\nvni 7\n" + strings.Repeat("#", maxNodeFile) + "\nvni 8\n"
	if err := os.WriteFile(nodePath(file), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := claimNode(file)
	if err != nil {
		t.Fatal(err)
	}
	defer n.release()
	if !slices.Equal(n.left.vnis, []uint32{7}) {
		t.Errorf("leftovers %v", n.left)
	}
	if err := n.remember(n.left); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(nodePath(file)); err != nil || info.Size() != idLen+1+6 {
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
	} {
		var err error
		switch name {
		case "link":
			err = os.Symlink(victim, nodePath(path))
		case "directory":
			err = os.Mkdir(nodePath(path), 0o700)
		case "link that leads nowhere":
			err = os.Symlink(filepath.Join(dir, "made"), nodePath(path))
		}
		if err != nil {
			t.Fatal(err)
		}
		n, err := claimNode(path)
		if err == nil || errors.As(err, new(*RunningError)) {
			t.Errorf("%s: %+v, %v; want an error", name, n, err)
		}
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "precious" {
		t.Errorf("the target of the link has %q, %v", b, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "made")); err == nil {
		t.Error("the target of the other link was made")
	}
}

// TestDaemonWithoutNodeFile: it goes on with an ID of its own, and logs what that means.
func TestDaemonWithoutNodeFile(t *testing.T) {
	w := newWorld(t)
	if err := os.Symlink("nowhere", nodePath(w.cfg.SubnetFile)); err != nil {
		t.Fatal(err)
	}
	n := New(w.cfg).newNetwork("")
	if err := n.claim(); err != nil || len(n.node.ID) != idLen || n.file != nil {
		t.Fatalf("claim: %v, ID %q", err, n.node.ID)
	}
	if w.log.count("no node file: drain and cleanup cannot see this daemon") != 1 {
		t.Errorf("log: %s", w.log.text())
	}
	n.remember(leftovers{vnis: []uint32{7}}) // of the next session in this process
	if !slices.Equal(n.left.vnis, []uint32{7}) {
		t.Errorf("leftovers %v", n.left)
	}
	n.release()
	again := New(w.cfg).newNetwork("")
	if again.claim(); again.node.ID == n.node.ID {
		t.Error("two daemons without a file have one ID")
	}
}

// TestIDOfTheNode: a daemon is known by the ID in its file, and has the leftovers that stand there.
func TestIDOfTheNode(t *testing.T) {
	w := newWorld(t)
	id := strings.Repeat("0e", idLen/2)
	if err := os.WriteFile(nodePath(w.cfg.SubnetFile), []byte(id+"\nvni 7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := New(w.cfg).newNetwork("")
	if err := n.claim(); err != nil || n.node.ID != id || n.node.Name != "host" || !slices.Equal(n.left.vnis, []uint32{7}) {
		t.Errorf("got %+v, %v, %v", n.node, n.left, err)
	}
	if err := New(w.cfg).newNetwork("").claim(); !errors.As(err, new(*RunningError)) {
		t.Errorf("a second claim: %v", err)
	}
	n.release()
}

// TestOneOfMany: of several processes that claim one file at a time one gets it, also if a reader's
// lock makes each of them replace the file.
func TestOneOfMany(t *testing.T) {
	t.Parallel()
	for name, reader := range map[string]bool{"plain": false, "a reader has it": true} {
		file := filepath.Join(t.TempDir(), "subnet.env")
		id := strings.Repeat("0b", idLen/2)
		if err := os.WriteFile(nodePath(file), []byte(id+"\nvni 7\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if reader {
			f, err := os.Open(nodePath(file))
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
			group.Go(func() { lines[i], _ = other(t, asHolder, file) })
		}
		group.Wait()
		won := slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return !strings.HasSuffix(l, "<nil>") })
		if len(won) != 1 {
			t.Errorf("%s: %d claims: %q", name, len(won), lines)
			continue
		}
		pid, _, _ := strings.Cut(won[0], " ")
		if got, held, err := running(file); fmt.Sprint(got) != pid || !held || err != nil {
			t.Errorf("%s: running: %d, %v, %v; want %s", name, got, held, err, pid)
		}
		if b, err := os.ReadFile(nodePath(file)); err != nil || string(b) != id+"\nvni 7\n" {
			t.Errorf("%s: the file has %q, %v", name, b, err)
		}
		if _, err := os.Stat(nodePath(file) + ".new"); err == nil {
			t.Errorf("%s: a copy is left", name)
		}
	}
}

// TestCopyThatWasLeft: a daemon that died while it replaced a file keeps no later one from doing so.
func TestCopyThatWasLeft(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	id := strings.Repeat("0b", idLen/2)
	for path, text := range map[string]string{nodePath(file): id + "\n", nodePath(file) + ".new": strings.Repeat("junk", 100)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(nodePath(file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK}); err != nil {
		t.Fatal(err)
	}
	n, err := claimNode(file)
	if err != nil {
		t.Fatal(err)
	}
	defer n.release()
	if b, err := io.ReadAll(io.NewSectionReader(n.file, 0, 1<<20)); n.id != id || err != nil || string(b) != id+"\n" {
		t.Errorf("ID %s, the file has %q, %v", n.id, b, err)
	}
}

// TestClaimOfRemovedFile: a file that is removed and made again is another one: its claim holds.
func TestClaimOfRemovedFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	stale, err := os.OpenFile(nodePath(file), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer stale.Close()
	if err := os.Remove(nodePath(file)); err != nil {
		t.Fatal(err)
	}
	n, err := claimNode(file)
	if err != nil {
		t.Fatal(err)
	}
	defer n.release()
	if _, held, err := running(file); !held && err == nil {
		t.Log("the holder is this process") // OFD locks of one process exclude each other too
	}
	if _, err := claimNode(file); !errors.As(err, new(*RunningError)) {
		t.Errorf("a second claim: %v", err)
	}
}

// TestLeftoversText: what is remembered is read as it was, and what the next session takes over is
// not left.
func TestLeftoversText(t *testing.T) {
	all := leftovers{[]uint32{1, 7, 16777215}, prefixes("10.5.0.0/16", "fd00:5::/48")}
	if got := parseLeftovers(all.text()); !reflect.DeepEqual(got, all) {
		t.Errorf("%q is read as %v", all.text(), got)
	}
	if text := (leftovers{}).text(); text != "" {
		t.Errorf("nothing is %q", text)
	}
	for _, c := range []struct{ next, want leftovers }{
		{leftovers{}, all},
		{all, leftovers{vnis: []uint32{}, networks: prefixes()}},
		{leftovers{[]uint32{7}, prefixes("10.5.0.0/16")}, leftovers{[]uint32{1, 16777215}, prefixes("fd00:5::/48")}},
		{leftovers{[]uint32{2}, prefixes("10.5.0.0/24")}, all},
	} {
		if got := all.without(c.next); !slices.Equal(got.vnis, c.want.vnis) || !slices.Equal(got.networks, c.want.networks) {
			t.Errorf("without %v: %v, want %v", c.next, got, c.want)
		}
	}
	if len(all.vnis) != 3 || all.vnis[0] != 1 {
		t.Errorf("the leftovers themselves were changed: %v", all)
	}
}
