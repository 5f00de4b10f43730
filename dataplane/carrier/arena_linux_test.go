package carrier

import (
	"os"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// resident returns how many pages of b are in memory.
func resident(t *testing.T, b []byte) (n int) {
	t.Helper()
	pages := make([]byte, (len(b)+os.Getpagesize()-1)/os.Getpagesize())
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&pages[0]))); errno != 0 {
		t.Fatal(errno)
	}
	for _, p := range pages {
		n += int(p & 1)
	}
	return n
}

// An arena takes memory as it is used: a worker that has little to do needs little.
func TestArenaIsEmptyAtFirst(t *testing.T) {
	t.Parallel()
	b, err := NewArena(receiveSlots * slotStride)
	if err != nil {
		t.Fatal(err)
	}
	defer FreeArena(b)
	if n := resident(t, b); n != 0 {
		t.Errorf("%d pages are in memory before they are used", n)
	}
	if slices.Max(b[:100]) != 0 {
		t.Error("not zero")
	}
	b[slotStride] = 1
	if n := resident(t, b); n < 1 || n > 2 {
		t.Errorf("%d pages are in memory, two were used", n)
	}
}
