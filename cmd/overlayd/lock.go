package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// lock is the claim of one daemon to one subnet file: `<subnet file>.pid`, locked
// (flock(2)) and holding the daemon's process id. The kernel drops the lock with
// the process however it ends, so a stale file claims nothing.
type lock struct{ file *os.File }

func lockPath(subnetFile string) string { return subnetFile + ".pid" }

// takeLock claims subnetFile for this process. runningError: another has it.
func takeLock(subnetFile string) (*lock, error) {
	path := lockPath(subnetFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, &runningError{subnetFile, readPid(f)}
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if err = f.Truncate(0); err == nil {
		_, err = f.WriteAt(strconv.AppendInt(nil, int64(os.Getpid()), 10), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return &lock{f}, nil
}

// release ends the claim. The file stays: removing it would let two daemons
// hold locks on two files of one name.
func (l *lock) release() {
	if l != nil {
		l.file.Close()
	}
}

// runningError says that a daemon runs with this subnet file. Its pid is 0 where
// it could not be read.
type runningError struct {
	subnetFile string
	pid        int
}

func (e *runningError) Error() string {
	return fmt.Sprintf("another overlayd (pid %d) is running with --subnet-file %s: stop it, or give this one a subnet file, prefix and VNI of its own", e.pid, e.subnetFile)
}

// running returns the pid of the daemon that holds subnetFile, 0 if there is none.
func running(subnetFile string) (int, error) {
	f, err := os.Open(lockPath(subnetFile))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	switch {
	case err == nil:
		return 0, nil
	case !errors.Is(err, unix.EWOULDBLOCK):
		return 0, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	if pid := readPid(f); pid > 0 {
		return pid, nil
	}
	return 0, fmt.Errorf("%s is locked by a daemon but holds no process id", f.Name())
}

func readPid(f *os.File) int {
	b, err := io.ReadAll(io.LimitReader(io.NewSectionReader(f, 0, 32), 32))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 {
		return max(pid, 0)
	}
	return pid
}
