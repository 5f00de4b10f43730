package parts

import (
	"errors"
	"log/slog"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// batch gives all threads of this process the policy SCHED_BATCH (sched(7)): a worker that the kernel wakes does not take the processor
// from a program that runs, but waits until that program waits or its time slice ends. Otherwise each packet of a program that sends interrupts it.
// bench/README.md has what that costs. A policy that somebody has set stays. Threads to come inherit it.
func batch(log *slog.Logger) {
	has, err := unix.SchedGetAttr(0, 0)
	if err == nil && has.Policy != unix.SCHED_NORMAL {
		return
	}
	fix := "allow sched_setscheduler in the seccomp profile, or set the policy batch from outside"
	if err == nil {
		var priority int32 // struct sched_param: 0, which is the only one of this policy
		_, _, errno := syscall.AllThreadsSyscall(unix.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_BATCH, uintptr(unsafe.Pointer(&priority)))
		switch err = errno; errno {
		case 0:
			return
		case syscall.ENOTSUP: // a program with cgo has threads that Go does not know
			err, fix = errors.New("this process was built with cgo"), "build it with CGO_ENABLED=0, as make build does, or set the policy batch from outside"
		}
	}
	log.Info("scheduling policy not changed: carrying packets interrupts the programs that send them, which costs throughput", "err", err, "fix", fix)
}
