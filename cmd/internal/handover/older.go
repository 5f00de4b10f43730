package handover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/carrier"
)

// TakeFrom takes the place of a daemon of a version that cannot be asked: duplicates of those of its files that name
// knows (pidfd_getfd(2): Linux 5.6, and the right to trace it), and then it ends the daemon by SIGTERM. still reports whether that
// process is the daemon. After an error the daemon goes on. What it had read and not yet sent on may be lost.
func TakeFrom(pid int, still func() bool, name func(fd int) (name string, flags uint64, ok bool)) (*Legacy, error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	if !still() { // the pid may be another process's by now
		unix.Close(pidfd)
		return nil, os.ErrProcessDone
	}
	l := &Legacy{}
	if l.Exports, err = duplicates(pid, pidfd, name); err == nil && len(l.Exports) == 0 {
		err = errors.New("it reads from no TUN device")
	}
	if err == nil {
		err = os.NewSyscallError("pidfd_send_signal", unix.PidfdSendSignal(pidfd, unix.SIGTERM, nil, 0))
	}
	if err != nil {
		carrier.CloseExports(l.Exports)
		unix.Close(pidfd)
		return nil, err
	}
	l.wait = func(ctx context.Context) {
		defer unix.Close(pidfd)
		for ctx.Err() == nil {
			const look = 100 // ms
			if n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, look); n > 0 || err != nil && err != unix.EINTR {
				return
			}
		}
	}
	return l, nil
}

// duplicates returns duplicates of the files of a process that name knows.
func duplicates(pid, pidfd int, name func(fd int) (string, uint64, bool)) (all []carrier.Export, err error) {
	defer func() {
		if err != nil {
			carrier.CloseExports(all)
			all = nil
		}
	}()
	files, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		number, err := strconv.Atoi(f.Name())
		if err != nil {
			continue
		}
		fd, err := unix.PidfdGetfd(pidfd, number, 0)
		if errors.Is(err, unix.EBADF) {
			continue // closed meanwhile
		}
		if err != nil {
			return all, fmt.Errorf("take file %d of pid %d: %w", number, pid, os.NewSyscallError("pidfd_getfd", err))
		}
		text, flags, ok := name(fd)
		if !ok {
			unix.Close(fd)
			continue
		}
		all = append(all, carrier.Export{Name: text, Flags: flags, Version: carrier.ExportVersion, File: os.NewFile(uintptr(fd), text)})
	}
	return all, nil
}
