package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

func TestLockDirIsExclusive(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	first, err := lockDir(t.Context(), dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("made with mode %v, %v, want 0700: the store is nobody else's", info.Mode(), err)
	}
	if second, err := lockDir(t.Context(), dir, 0); err == nil {
		second.Close()
		t.Error("locked twice")
	}
	time.AfterFunc(50*time.Millisecond, func() { first.Close() })
	waited, err := lockDir(t.Context(), dir, time.Minute)
	if err != nil {
		t.Fatalf("while the first is about to go: %v", err)
	}
	waited.Close()
	again, err := lockDir(t.Context(), dir, 0)
	if err != nil {
		t.Fatalf("after the first has gone: %v", err)
	}
	again.Close()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "sub", "overlayd.lock"), 0o700); err != nil {
		t.Fatal(err)
	}
	if f, err := lockDir(t.Context(), filepath.Join(dir, "sub"), 0); err == nil || !strings.Contains(err.Error(), "cannot be written") {
		f.Close()
		t.Errorf("the lock is a directory: %v", err)
	}
}

func TestCheckDatabase(t *testing.T) {
	dir := t.TempDir()
	if err := checkDatabase(dir); err != nil {
		t.Errorf("no database yet: %v", err)
	}
	db := filepath.Join(dir, "member", "snap", "db")
	if err := os.MkdirAll(filepath.Dir(db), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"junk": strings.Repeat("junk", 4096), "cut": "x"} {
		if err := os.WriteFile(db, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := checkDatabase(dir); err == nil || !strings.Contains(err.Error(), db) {
			t.Errorf("%s: %v, want an error with the path", name, err)
		}
	}
}

// smallDisk mounts a disk of a size, such as 16k, of which a file takes taken bytes.
func smallDisk(t *testing.T, size string, taken int) (dir string) {
	t.Helper()
	dir = netnstest.SmallDisk(t, "size="+size)
	if err := os.WriteFile(filepath.Join(dir, "taken"), make([]byte, taken), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestDiskIsTriedFirst: etcd is not started on a disk on which it would panic.
func TestDiskIsTriedFirst(t *testing.T) {
	dir := smallDisk(t, "2m", 3<<19)
	if err := tryDisk(dir, 0); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), dir) {
		t.Errorf("full: %v", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), Config{Dir: dir}); !errors.Is(err, unix.EROFS) || errors.Is(err, ErrDamaged) {
		t.Errorf("read-only: %v", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "taken")); err != nil {
		t.Fatal(err)
	}
	if err := tryDisk(dir, 0); err != nil {
		t.Errorf("with room: %v", err)
	}
	if left, err := os.ReadDir(dir); len(left) != 0 || err != nil {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestSetAside: damaged data are kept, a few times, and those of a cluster of several members stay.
func TestSetAside(t *testing.T) {
	dir := t.TempDir()
	make := func(content string) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(database(dir)), 0o700), os.WriteFile(database(dir), []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range maxAside {
		make(strings.Repeat("junk", i*4096))
		aside, err := SetAside(t.Context(), dir, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(aside, "snap", "db")); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(dir, "member")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left: %v", err)
		}
		time.Sleep(2 * time.Millisecond) // the name has milliseconds
	}
	make("junk")
	if _, err := SetAside(t.Context(), dir, 0); !errors.Is(err, ErrAsideBefore) || !strings.Contains(err.Error(), "damaged-") {
		t.Errorf("once more: %v", err)
	}
	if _, err := SetAside(t.Context(), t.TempDir(), 0); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing there: %v", err)
	}
}

func TestSetAsideOfSeveralMembers(t *testing.T) {
	for n, want := range map[int]error{1: nil, 3: ErrMembers} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Dir(database(dir)), 0o700); err != nil {
			t.Fatal(err)
		}
		db, err := bbolt.Open(database(dir), 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucket([]byte("members"))
			for i := range n {
				err = errors.Join(err, b.Put([]byte{byte(i)}, []byte("{}")))
			}
			return err
		})
		if err = errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := SetAside(t.Context(), dir, 0); !errors.Is(err, want) {
			t.Errorf("%d members: %v, want %v", n, err, want)
		}
	}
}

// TestUsedByAnother: data that another program has, if only to read them, are not damaged, and stay where they are.
func TestUsedByAnother(t *testing.T) {
	for _, reads := range []bool{false, true} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Dir(database(dir)), 0o700); err != nil {
			t.Fatal(err)
		}
		db, err := bbolt.Open(database(dir), 0o600, nil)
		if err == nil && reads {
			db.Close()
			db, err = bbolt.Open(database(dir), 0o600, &bbolt.Options{ReadOnly: true})
		}
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if s, err := Start(t.Context(), Config{Dir: dir}); !errors.Is(err, ErrInUse) || errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), database(dir)) {
			t.Errorf("start: %v, %v", s, err)
		}
		if aside, err := SetAside(t.Context(), dir, 0); !errors.Is(err, ErrInUse) {
			t.Errorf("moved to %q: %v", aside, err)
		}
	}
}

// TestSetAsideSaysOnce: what keeps failing has one text, which is logged once.
func TestSetAsideSaysOnce(t *testing.T) {
	dir := t.TempDir()
	member := filepath.Join(dir, "member")
	if err := errors.Join(os.Mkdir(member, 0o700), unix.Mount("tmpfs", member, "tmpfs", 0, "size=16k")); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(member, unix.MNT_DETACH)
	_, first := SetAside(t.Context(), dir, 0)
	time.Sleep(2 * time.Millisecond) // the name has milliseconds
	_, second := SetAside(t.Context(), dir, 0)
	if !errors.Is(first, unix.EBUSY) || second == nil || first.Error() != second.Error() {
		t.Errorf("%v, then %v", first, second)
	}
}

// An error of the kernel says nothing about the data.
func TestDamagedIsNotRefused(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), ListenClient: "http://192.0.2.1:2379"}
	for _, c := range []struct {
		err  error
		want bool
	}{{&os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}, false}, {errors.New("walpb: crc mismatch"), true},
		{errors.New("epoll: too many open files"), false}, {fmt.Errorf("open log: %w", fileutil.ErrLocked), false}} {
		if err := explain(c.err, cfg); errors.Is(err, ErrDamaged) != c.want {
			t.Errorf("%v: %v", c.err, err)
		}
	}
}
