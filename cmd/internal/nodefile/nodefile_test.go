package nodefile

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/processtest"
)

// TestNodeFile: the node's ID and the leftovers are the same in the next run.
func TestNodeFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "deep", "subnet.env")
	if pid, held, err := Holder(file); pid != 0 || held || err != nil {
		t.Fatalf("nothing runs: got %d, %v, %v", pid, held, err)
	}
	n, err := Claim(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(n.ID) != idLen {
		t.Errorf("node ID %q", n.ID)
	}
	left := Left{[]uint32{1, 12}, []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("fd10:5::/48")}}
	for _, last := range []Left{left, {}, {VNIs: []uint32{7}}} {
		if err := n.Remember(last); err != nil {
			t.Fatal(err)
		}
		n.Release()
		again, err := Claim(file)
		if err != nil || again.ID != n.ID || !reflect.DeepEqual(again.Left, last) {
			t.Errorf("next run: %+v, %v; want ID %s and %v", again, err, n.ID, last)
		}
		n = again
	}
	if err := n.Remove(); err != nil {
		t.Error(err)
	}
	other, err := Claim(file)
	if err != nil || other.ID == n.ID {
		t.Errorf("after removal: %+v, %v", other, err)
	}
	other.Release()
}

// TestNodeFileSpoilt: text that is not an ID is replaced by one.
func TestNodeFileSpoilt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	for _, text := range []string{"", "x", strings.Repeat("z", idLen), strings.Repeat("0", idLen-1)} {
		if err := os.WriteFile(Path(file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		n, err := Claim(file)
		if err != nil {
			t.Fatal(err)
		}
		if len(n.ID) != idLen || strings.Contains(text, n.ID) {
			t.Errorf("%q gives ID %q", text, n.ID)
		}
		n.Release()
	}
}

// TestNodeFileHeld: another process is refused, learns the pid of the holder, and gets the file
// once the holder has ended.
func TestNodeFileHeld(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	line, end := processtest.Run(t, asHolder, file)
	var pid int
	if _, err := fmt.Sscanf(line, "%d <nil>", &pid); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	_, err := Claim(file)
	if refused := new(RunningError); !errors.As(err, &refused) || refused.PID != pid || refused.SubnetFile != file {
		t.Errorf("got %v, want a refusal that names pid %d", err, pid)
	}
	if got, held, err := Holder(file); got != pid || !held || err != nil {
		t.Errorf("running: %d, %v, %v, want %d", got, held, err, pid)
	}
	inside, _ := processtest.Run(t, asAsker, file, func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	})
	if inside != "0 true <nil>" {
		t.Errorf("from another pid namespace: %s, want no pid", inside)
	}
	end()
	n, err := Claim(file)
	if err != nil {
		t.Fatal(err)
	}
	n.Release()
}

// TestNodeFileOfOlderDaemon: the lock of a daemon that locks the whole file by POSIX excludes this
// one, with its pid; its file, of mode 0644, keeps its ID and becomes readable for its user only.
func TestNodeFileOfOlderDaemon(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	id := strings.Repeat("0a", idLen/2)
	if err := os.WriteFile(Path(file), []byte(id+"\nvni 7\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	old, err := os.OpenFile(Path(file), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.FcntlFlock(old.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	if line, _ := processtest.Run(t, asHolder, file); !strings.Contains(line, fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("beside an older daemon: %q", line)
	}
	old.Close()
	n, err := Claim(file)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Release()
	if info, err := n.file.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if n.ID != id || !reflect.DeepEqual(n.Left, Left{VNIs: []uint32{7}}) {
		t.Errorf("got %s, %v", n.ID, n.Left)
	}
}

// TestReadLockIsNoClaim: whoever could read an older daemon's file, and holds a read lock on it,
// keeps no daemon from starting, and the daemon keeps its ID.
func TestReadLockIsNoClaim(t *testing.T) {
	for name, how := range map[string]int{"POSIX": unix.F_SETLK, "open file description": unix.F_OFD_SETLK} {
		for _, length := range []int64{0, 1} {
			t.Run(fmt.Sprintf("%s, %d", name, length), func(t *testing.T) {
				file := filepath.Join(t.TempDir(), "subnet.env")
				id := strings.Repeat("0b", idLen/2)
				if err := os.WriteFile(Path(file), []byte(id+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
				reader, err := os.Open(Path(file))
				if err != nil {
					t.Fatal(err)
				}
				defer reader.Close()
				if err := unix.FcntlFlock(reader.Fd(), how, &unix.Flock_t{Type: unix.F_RDLCK, Len: length}); err != nil {
					t.Fatal(err)
				}
				if pid, held, err := Holder(file); held || err != nil {
					t.Errorf("a reader passes for the daemon: %d, %v", pid, err)
				}
				line, _ := processtest.Run(t, asHolder, file)
				if !strings.HasSuffix(line, "<nil>") {
					t.Fatalf("the daemon is refused: %s", line)
				}
				text, err := os.ReadFile(Path(file))
				if err != nil || !strings.HasPrefix(string(text), id) {
					t.Errorf("the file has %q (%v), want ID %s", text, err, id)
				}
				if _, err := os.Stat(Path(file) + ".new"); err == nil {
					t.Error("a temporary file is left")
				}
				if _, held, err := Holder(file); !held || err != nil {
					t.Errorf("the daemon's own claim is not seen: %v", err)
				}
			})
		}
	}
}

// TestPublishedAddresses: the file tells which addresses this node has published before, the last
// ones first, beside what is left, and not without end.
func TestPublishedAddresses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "subnet.env")
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }
	for _, step := range []struct {
		now  []int
		want []int
	}{
		{[]int{1}, nil},
		{[]int{1}, nil},
		{[]int{2, 12}, []int{1}},
		{[]int{3, 12}, []int{2, 1}},
		{[]int{1, 12}, []int{3, 2}},
		{[]int{4}, []int{1, 12, 3, 2}},
		{[]int{5}, []int{4, 1, 12, 3, 2}},
		{[]int{6}, []int{5, 4, 1, 12, 3, 2}},
		{[]int{7}, []int{6, 5, 4, 1, 12, 3, 2}},
		{[]int{8}, []int{7, 6, 5, 4, 1, 12, 3, 2}},
		{[]int{9}, []int{8, 7, 6, 5, 4, 1, 12, 3}},
	} {
		n, err := Claim(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Remember(Left{VNIs: []uint32{7}}); err != nil {
			t.Fatal(err)
		}
		var now, want []netip.Addr
		for _, i := range step.now {
			now = append(now, addr(i))
		}
		for _, i := range step.want {
			want = append(want, addr(i))
		}
		if got := n.Former(now); !slices.Equal(got, want) {
			t.Errorf("before it publishes %v: former %v, want %v", now, got, want)
		}
		got, err := n.Publish(now)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("publishes %v: former %v, %v, want %v", now, got, err, want)
		}
		id := n.ID
		n.Release()
		if n, err = Claim(path); err != nil || n.ID != id || !slices.Equal(n.Left.VNIs, []uint32{7}) {
			t.Fatalf("read back %+v, %v", n, err)
		}
		n.Release()
	}
	if former, err := (*File)(nil).Publish([]netip.Addr{addr(1)}); former != nil || err != nil {
		t.Errorf("without a file: %v, %v", former, err)
	}
	if former := (*File)(nil).Former([]netip.Addr{addr(1)}); former != nil {
		t.Errorf("without a file: %v", former)
	}
}
