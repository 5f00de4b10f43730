package carrier

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// NewArena returns n bytes of zeroed memory that the garbage collector does not
// know. The kernel backs a page when it is first used, so that a daemon takes of its arenas
// what the bursts of its traffic need: between none and a few hundred KiB, where all are several MB for each
// worker. FreeArena gives it back.
func NewArena(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes for packets: %w", n, err)
	}
	return b, nil
}

// FreeArena gives back what NewArena returned. nil is nothing.
func FreeArena(b []byte) {
	if b != nil {
		_ = unix.Munmap(b) // of a mapping of ours: cannot fail
	}
}
