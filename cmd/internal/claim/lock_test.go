package claim

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCloseBesideACopy: a claim ends with Close even while a child that this process starts has a copy of the file.
func TestCloseBesideACopy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "claimed")
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	inherited, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(inherited)
	if err := Close(f); err != nil {
		t.Error(err)
	}
	if f, err = Open(path); err != nil {
		t.Fatal(err)
	}
	if err := Close(f); err != nil {
		t.Error(err)
	}
}
