package node

import (
	"errors"
	"log/slog"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// policy is the scheduling policy of this process.
type policy struct {
	mu  sync.Mutex
	set bool // it is SCHED_BATCH because of this daemon
}

// batch gives all threads of this process the policy SCHED_BATCH (sched(7)): a worker that the kernel wakes does not take the processor
// from a program that runs, but waits until that program waits or its time slice ends. Otherwise each packet of a program that sends interrupts it.
// bench/README.md has what that costs. A policy that somebody has set stays. Threads to come inherit it. It is called once the daemon
// forwards: until then packets wait for it, as in hurry.
func (p *policy) batch(log *slog.Logger) {
	p.mu.Lock()
	defer p.mu.Unlock()
	has, err := unix.SchedGetAttr(0, 0)
	if err == nil && has.Policy != unix.SCHED_NORMAL {
		return
	}
	fix := "allow sched_setscheduler in the seccomp profile, or set the policy batch from outside"
	if err == nil {
		switch err = setPolicy(unix.SCHED_BATCH); err {
		case nil:
			p.set = true
			return
		case syscall.ENOTSUP: // a program with cgo has threads that Go does not know
			err, fix = errors.New("this process was built with cgo"), "build it with CGO_ENABLED=0, as make build does, or set the policy batch from outside"
		}
	}
	log.Info("scheduling policy not changed: carrying packets interrupts the programs that send them, which costs throughput", "err", err, "fix", fix)
}

// hurry undoes batch, for a daemon that hands over: nobody forwards until the next one has what this one gives it. On a
// machine that is busy, with SCHED_BATCH, that took 300 ms instead of 100.
func (p *policy) hurry() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.set {
		p.set = setPolicy(unix.SCHED_NORMAL) != nil
	}
}

// setPolicy sets the policy of all threads.
func setPolicy(to int) error {
	var priority int32 // struct sched_param: 0, which is the only one of these policies
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_SCHED_SETSCHEDULER, 0, uintptr(to), uintptr(unsafe.Pointer(&priority))); errno != 0 {
		return errno
	}
	return nil
}
