package carrier

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// NewArena returns n bytes of zeroed memory that the garbage collector does not
// know, in memory already: a page fault costs more than a packet. FreeArena
// gives it back.
func NewArena(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE|unix.MAP_POPULATE)
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
