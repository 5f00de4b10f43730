package pki

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/overlayd/overlayd/dataplane/hostfile"
)

// WriteFile puts a file with a key in its place at once, for its owner alone. What is no file, such as /dev/stdout, it writes to.
func WriteFile(path string, text []byte) (err error) {
	if isSpecial(path) {
		return writeTo(path, text)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".") // with mode 0600
	if err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: hostfile.Cause(err)} // the name of the temporary file says nothing
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name()) // best effort: the error to report is the first one
			err = &fs.PathError{Op: "write", Path: path, Err: hostfile.Cause(err)}
		}
	}()
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// isSpecial reports whether a path leads to a device or FIFO, or by /proc to a file that is open, as /dev/stdout does.
func isSpecial(path string) bool {
	info, err := os.Stat(path)
	if err != nil || info.IsDir() {
		return false
	}
	to, _ := os.Readlink(path) // an error: it is no link
	return !info.Mode().IsRegular() || strings.HasPrefix(to, "/proc/")
}

// writeTo writes behind what was written before, as by a shell to the same output.
func writeTo(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// isMissing reports whether a file is not there.
func isMissing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}
