package rights

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// lastCap is the highest number that a kernel may have.
const lastCap = 63

// Keep gives up all capabilities but those in keep, in all threads of this process, and returns what is left. A process that has
// no right to it leaves its bounding set as it is: with no_new_privs nothing in there can be had any more. A program
// with cgo has threads that Go does not know: then the error is [errors.ErrUnsupported] and nothing has changed.
func Keep(keep Set) (left Set, err error) {
	if err := all(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		return 0, fmt.Errorf("prctl PR_SET_NO_NEW_PRIVS: %w", err)
	}
	for n := range uintptr(lastCap + 1) {
		if keep&(1<<n) != 0 {
			continue
		}
		if is(unix.PR_CAPBSET_READ, n, 0) {
			if err := all(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, n, 0); err != nil && !errors.Is(err, unix.EPERM) { // without CAP_SETPCAP
				return 0, fmt.Errorf("prctl PR_CAPBSET_DROP %d: %w", n, err)
			}
		}
		if is(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_IS_SET, n) {
			if err := all(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_LOWER, n); err != nil {
				return 0, fmt.Errorf("prctl PR_CAP_AMBIENT_LOWER %d: %w", n, err)
			}
		}
	}
	now, err := read()
	if err != nil {
		return 0, err
	}
	now = now.and(keep)
	h, d := header(), now.data()
	if err := all(unix.SYS_CAPSET, uintptr(unsafe.Pointer(h)), uintptr(unsafe.Pointer(d)), 0); err != nil {
		return 0, fmt.Errorf("capset: %w", err)
	}
	return now.permitted, nil
}

// is asks for an attribute of the calling thread. It is false for a capability that the kernel does not have.
func is(option, a, b uintptr) bool {
	set, _, errno := syscall.RawSyscall6(unix.SYS_PRCTL, option, a, b, 0, 0, 0)
	return errno == 0 && set == 1
}

// all makes a system call in all threads.
func all(trap, a, b, c uintptr) error {
	_, _, errno := syscall.AllThreadsSyscall6(trap, a, b, c, 0, 0, 0)
	switch {
	case errno == syscall.ENOTSUP:
		return errors.ErrUnsupported
	case errno != 0:
		return errno
	}
	return nil
}
