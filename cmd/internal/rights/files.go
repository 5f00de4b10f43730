package rights

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// CanRead returns why this process cannot read a file without the right to read any; nil also if there is no such file.
func CanRead(file string) error {
	err := without(dac, func() error { return unix.Faccessat(unix.AT_FDCWD, file, unix.R_OK, unix.AT_EACCESS) })
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("read %s as user %d: %w", file, os.Geteuid(), err)
}

// CanWrite reports whether this process can make files in a directory, without the right to do so in any. There need not
// be one: what counts then is that to make it in.
func CanWrite(dir string) bool {
	err := without(dac, func() error { return unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS) })
	return !errors.Is(err, fs.ErrPermission)
}

// without calls do in a thread that does not use some capabilities, and ends afterwards. It still has them: Keep, which may
// run before the thread has ended, changes all threads alike or ends the process.
func without(some Set, do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
		now, err := read()
		if err == nil {
			now.effective &^= some
			err = unix.Capset(header(), &now.data()[0])
		}
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}
