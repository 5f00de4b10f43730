package main

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestAsInFile: only mappings of the program that cannot be written to, and never were, may be taken from a process.
func TestAsInFile(t *testing.T) {
	const smaps = `00400000-016d5000 r-xp 00000000 fe:00 100 /usr/bin/over layd
Rss:               15044 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
016d5000-02b92000 r--p 012d5000 fe:00 100 /usr/bin/over layd
Anonymous:             0 kB
02b92000-02c00000 r--p 02792000 fe:00 100 /usr/bin/over layd
Anonymous:            12 kB
02c00000-02c43000 rw-p 02792000 fe:00 100 /usr/bin/over layd
Anonymous:             0 kB
7f0000000000-7f0000001000 r--p 00000000 fe:00 101 /usr/lib/libc.so.6
Anonymous:             0 kB
7f0000001000-7f0000002000 r--s 00000000 fe:00 100 /usr/bin/over layd
Anonymous:             0 kB
7f0000002000-7f0000003000 r--p 00000000 00:00 0
Anonymous:             0 kB
`
	list, err := asInFile(strings.NewReader(smaps), "/usr/bin/over layd")
	if want := []mapping{{0x400000, 0x16d5000}, {0x16d5000, 0x2b92000}}; err != nil || !slices.Equal(list, want) {
		t.Errorf("%x, %v; want %x", list, err, want)
	}
	if list, err := asInFile(strings.NewReader("x-y r-xp 0 0 0 /p\n"), "/p"); err == nil {
		t.Errorf("%x of no address", list)
	}
}

// TestUnmapProgram: a process goes on without the pages of its program, and has most of them no longer.
func TestUnmapProgram(t *testing.T) {
	program := func() (kB int) {
		text, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "RssFile:")
		kB, err = strconv.Atoi(strings.Fields(rest)[0])
		if err != nil {
			t.Fatal(err)
		}
		return kB
	}
	before := program()
	if err := unmapProgram(); err != nil {
		t.Fatal(err)
	}
	if after := program(); after > before/2 {
		t.Errorf("%d kB of the program, %d before", after, before)
	}
}
