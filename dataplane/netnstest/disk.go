package netnstest

import (
	"testing"

	"golang.org/x/sys/unix"
)

// SmallDisk mounts a tmpfs with options, such as "size=16k", until the test ends. It needs root.
func SmallDisk(tb testing.TB, options string) (dir string) {
	tb.Helper()
	RequireRoot(tb)
	dir = tb.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		tb.Fatalf("mount a small disk: %v", err)
	}
	tb.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}
