//go:build linux

package encap

import (
	"os"
	"syscall"
	"testing"
)

// TestSumStaysInside sums buffers between two pages that must not be read: a
// byte outside would end the test with a segmentation fault.
func TestSumStaysInside(t *testing.T) {
	page := os.Getpagesize()
	mem, err := syscall.Mmap(-1, 0, 3*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatalf("map three pages: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Munmap(mem); err != nil {
			t.Errorf("unmap: %v", err)
		}
	})
	inside := mem[page : 2*page]
	copy(inside, pattern(page))
	for _, guard := range [][]byte{mem[:page], mem[2*page:]} {
		if err := syscall.Mprotect(guard, syscall.PROT_NONE); err != nil {
			t.Fatalf("protect a page: %v", err)
		}
	}
	for n := range page + 1 {
		for _, b := range [][]byte{inside[:n], inside[page-n:]} {
			if got, want := Sum(b, 7), slowSum(b, 7); got != want {
				t.Fatalf("Sum of %d bytes = %#04x, want %#04x", n, got, want)
			}
		}
	}
}
