// Package hostfile reads files of this host that another user may have put in their place.
package hostfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// MaxLen bounds what Read reads, in bytes.
const MaxLen = 1 << 20

// Open opens a regular file to read it, or the one that a link leads to. It waits for nobody, as a FIFO would have it do for a writer. What is
// no file is not opened at all: that alone has an effect on some devices.
func Open(path string) (*os.File, error) { return OpenFile(path, os.O_RDONLY, 0) }

// OpenFile is Open with flags of os.OpenFile.
func OpenFile(path string, flag int, perm fs.FileMode) (*os.File, error) {
	if info, err := os.Stat(path); err == nil {
		if err := check(path, info); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, flag|unix.O_NONBLOCK|unix.O_NOCTTY, perm)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat() // it may have been replaced since
	if err == nil {
		err = check(path, info)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Read reads a file as Open opens it. One that has more than MaxLen bytes is an error.
func Read(path string) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, MaxLen+1))
	if err == nil && len(text) > MaxLen {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("want at most %d bytes", MaxLen)}
	}
	if err != nil {
		return nil, err
	}
	return text, nil
}

// Check returns why Open would refuse a file; nil also if there is none.
func Check(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return check(path, info)
}

// ErrNotRegular says that something else is in the place of a file.
var ErrNotRegular = errors.New("want a regular file")

func check(path string, info fs.FileInfo) error {
	err := error(unix.EISDIR)
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return nil
	case mode&fs.ModeNamedPipe != 0:
		err = fmt.Errorf("%w, not a FIFO", ErrNotRegular)
	case mode&fs.ModeSocket != 0:
		err = fmt.Errorf("%w, not a socket", ErrNotRegular)
	case mode&fs.ModeDevice != 0:
		err = fmt.Errorf("%w, not a device", ErrNotRegular)
	case !mode.IsDir():
		err = fmt.Errorf("%w, not %s", ErrNotRegular, mode.Type())
	}
	return &fs.PathError{Op: "open", Path: path, Err: err}
}

// IsRefusal reports whether an error is of the file system, and not one of what a file holds.
func IsRefusal(err error) bool {
	return errors.As(err, new(*fs.PathError)) || errors.As(err, new(*os.LinkError))
}

// Cause returns what an error of the file system says, without the names in it: that of a temporary file would make every try another error.
func Cause(err error) error {
	if p := new(fs.PathError); errors.As(err, &p) {
		return p.Err
	}
	if l := new(os.LinkError); errors.As(err, &l) {
		return l.Err
	}
	return err
}
