package testbed

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestReadLease(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	if _, err := ReadLease(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: got %v, want %v", err, fs.ErrNotExist)
	}
	if err := os.WriteFile(file, []byte("FLANNEL_SUBNET=10.244.7.1/24\nFLANNEL_MTU=1450\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadLease(file); err != nil || got.Pod().String() != "10.244.7.2" {
		t.Errorf("got pod %s, %v", got.Pod(), err)
	}
}
