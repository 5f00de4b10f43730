package claim

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHolderEnds: a process that was killed has no name any more before the kernel frees its lock.
func TestHolderEnds(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, named := range []bool{true, false} {
		if err := setLock(f, unix.F_OFD_SETLK, 0, nameByte); err != nil {
			t.Fatal(err)
		}
		if named {
			if err := setLock(f, unix.F_SETLK, nameByte, 1); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Open(path) // it ends the name, as this is the same process
		if other := new(LockedError); !errors.As(err, &other) || other.Ends == named || named != (other.PID == os.Getpid()) {
			t.Errorf("named %v: %v", named, err)
		}
	}
}
