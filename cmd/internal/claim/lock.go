package claim

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/hostfile"
)

// A claim is an open-file-description lock (fcntl(2), F_OFD_SETLK) on a file that only the
// daemon's user can open. The kernel drops it with the process, however that ends. A read lock is
// no claim: it needs no right to write, so that anybody may have it who could once open the file.
//
// Such a lock does not say who holds it. Therefore its holder has a POSIX lock besides, on a byte
// far behind the content, only to give its name: the kernel tells the pid, in the pid namespace
// of whoever asks. The POSIX locks of older daemons are on the whole file and exclude both.
const nameByte = 1 << 40

// maxContent bounds how much is copied of a locked file, in bytes. No file of a claim is that long.
const maxContent = 4096

// errLocked says that another process holds the lock.
var errLocked = errors.New("locked by another process")

// lock claims f for this process. errLocked: another process has it.
func lock(f *os.File) error {
	if err := setLock(f, unix.F_OFD_SETLK, 0, nameByte); err != nil {
		return err
	}
	return setLock(f, unix.F_SETLK, nameByte, 1)
}

// setLock takes a write lock on a part of a file, in the way of a command of fcntl(2).
func setLock(f *os.File, how int, start, length int64) error {
	err := unix.FcntlFlock(f.Fd(), how, &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: start, Len: length})
	switch {
	case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES):
		return errLocked
	case err != nil:
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return nil
}

// Holder is who holds a lock.
type Holder struct {
	Held   bool
	PID    int  // 0: it is in a pid namespace that this process does not see
	Reader bool // it has a read lock only: no claim
	Ends   bool // it has no name any more: it was killed, and the kernel closes its files
}

// HolderOf asks the kernel who keeps this process from locking f.
func HolderOf(f *os.File) (h Holder, err error) {
	for i, part := range []struct{ start, length int64 }{{0, nameByte}, {nameByte, 1}} {
		l := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: part.start, Len: part.length}
		if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l); err != nil {
			return h, fmt.Errorf("ask who locks %s: %w", f.Name(), err)
		}
		if l.Type == unix.F_UNLCK {
			h.Ends = h.Held && i == 1
			continue
		}
		h.Held = true
		h.Reader = h.Reader || l.Type == unix.F_RDLCK
		h.PID = max(h.PID, int(l.Pid)) // -1 for the open file description
	}
	return h, nil
}

// Open opens the file of a claim, creates it if it is missing, and locks it. The caller ends the claim
// by Close. *LockedError: another process has it.
func Open(path string) (*os.File, error) {
	for {
		f, err := hostfile.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		done, err := settle(f, path)
		if done && err == nil {
			return f, nil
		}
		Close(f)
		if err != nil {
			return nil, err
		}
	}
}

// OpenWith is Open with locks of the file that another process has handed over: the first that fits is the claim,
// and the others are closed.
func OpenWith(path string, locks []carrier.Export) (*os.File, error) {
	var found *os.File
	for _, l := range locks {
		if found == nil && IsAt(l.File, path) && lock(l.File) == nil {
			found = l.File
			continue
		}
		l.File.Close()
	}
	if found == nil {
		return Open(path)
	}
	if _, err := found.Seek(0, io.SeekStart); err != nil {
		found.Close()
		return nil, err
	}
	return found, nil
}

// Close ends the claim of a file that Open returned. To close the file is not enough: a child of this process
// has a copy of it until the child calls exec(2), and the copy keeps the lock. The name is freed first: after the
// claim it would pass for that of another holder.
func Close(f *os.File) error {
	free := unix.Flock_t{Type: unix.F_UNLCK, Whence: io.SeekStart}
	err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &free)
	return errors.Join(err, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &free), f.Close())
}

// settle locks f, which was opened as path. It reports false if path has to be opened again.
func settle(f *os.File, path string) (done bool, err error) {
	err = lock(f)
	if errors.Is(err, errLocked) {
		h, err := HolderOf(f)
		switch {
		case err != nil:
			return false, err
		case !h.Held: // it has gone meanwhile
			return false, nil
		case h.Reader:
			return false, replace(f, path)
		}
		return false, &LockedError{h.PID, h.Ends}
	}
	if err != nil {
		return false, err
	}
	if !IsAt(f, path) { // somebody removed it before it was locked
		return false, nil
	}
	return true, f.Chmod(0o600) // older daemons made it readable for everybody
}

// LockedError is errLocked with the pid of the holder; 0 if that is in another pid namespace, or about to end.
type LockedError struct {
	PID  int
	Ends bool // see Holder
}

// Error implements error.
func (e *LockedError) Error() string {
	if e.PID == 0 {
		return errLocked.Error()
	}
	return fmt.Sprintf("%v (pid %d)", errLocked, e.PID)
}

// Unwrap lets errors.Is and errors.As see the cause.
func (e *LockedError) Unwrap() error { return errLocked }

// replace puts a copy in the place of f: others can lock f, and cannot even open the copy.
func replace(f *os.File, path string) error {
	next, err := hostfile.OpenFile(path+".new", os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer Close(next)
	err = setLock(next, unix.F_OFD_SETLK, 0, nameByte)
	if errors.Is(err, errLocked) {
		// Another process is about to rename it. To wait for its lock would be to wait for the end
		// of the daemon that claims the renamed file: look at path again instead.
		time.Sleep(time.Millisecond)
		return nil
	}
	if err != nil {
		return err
	}
	if !IsAt(next, next.Name()) { // another process has done it
		return nil
	}
	if !IsAt(f, path) { // the same, before next was made
		return os.Remove(next.Name())
	}
	if err := next.Truncate(0); err != nil {
		return err
	}
	if _, err := io.Copy(next, io.NewSectionReader(f, 0, maxContent)); err != nil {
		return err
	}
	return os.Rename(next.Name(), path)
}

// IsAt reports whether path still names the file that is open as f.
func IsAt(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Lstat(path)
	return err == nil && os.SameFile(a, b)
}
