package netnstest

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// First gives this process and those that it starts the processors before others until the test ends, if the user may have that.
// Other tests of the package must not run meanwhile.
func First(tb testing.TB) {
	tb.Helper()
	setPriority(tb, -15)
	tb.Cleanup(func() { setPriority(tb, 0) })
}

// setPriority sets the nice value of each thread; new threads and processes inherit it.
func setPriority(tb testing.TB, nice int) {
	tb.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		tb.Fatal(err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			tb.Fatal(err)
		}
		err = unix.Setpriority(unix.PRIO_PROCESS, id, nice)
		if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) { // some have ended
			tb.Fatalf("set priority: %v", err)
		}
	}
}
