package admin

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/claim"
)

// Path returns the path of the socket of a daemon that serves one network, by its subnet file.
func Path(subnetFile string) string { return subnetFile + ".sock" }

// PathIn returns the path of the socket of a daemon that serves several networks, by the directory of their subnet files.
func PathIn(subnetDir string) string { return filepath.Join(subnetDir, "overlayd.sock") }

// ErrTaken says that the path of the socket is another process's, or no socket's.
var ErrTaken = errors.New("the path of the admin socket is taken")

const (
	mode        = 0o660
	suffixNew   = ".new"      // of a socket that has not its name yet
	dialTimeout = time.Second // to find out whether a process listens
)

// listen opens a socket at path, for its owner and a group; -1: no other group than the process has. It takes the place of
// a socket at which nobody listens, and with takePlace of any. It returns what stands at path then.
func listen(path string, group int, takePlace bool) (*net.UnixListener, os.FileInfo, error) {
	there, err := checkFree(path, takePlace)
	if err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, nil, err
	}
	temporary := path + suffixNew
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a process that was killed
		return nil, nil, err
	}
	l, err := claim.Listen("unix", temporary)
	if err != nil {
		return nil, nil, err
	}
	l.SetUnlinkOnClose(false) // the path may be another process's by then
	info, err := publish(temporary, path, group, there || takePlace)
	if err != nil {
		l.Close()
		os.Remove(temporary)
		if _, taken := checkFree(path, takePlace); errors.Is(err, fs.ErrExist) && taken != nil {
			err = taken
		}
		return nil, nil, err
	}
	return l, info, nil
}

// publish gives a socket its group and mode, and then its name. It replaces what has that name only if replace is true:
// otherwise another process has taken it meanwhile.
func publish(temporary, path string, group int, replace bool) (os.FileInfo, error) {
	if group >= 0 {
		if err := os.Lchown(temporary, -1, group); err != nil {
			return nil, fmt.Errorf("give the admin socket to group %d: %w", group, err)
		}
	}
	if err := os.Chmod(temporary, mode); err != nil {
		return nil, err
	}
	info, err := os.Lstat(temporary)
	if err != nil {
		return nil, err
	}
	if replace {
		return info, os.Rename(temporary, path)
	}
	err = os.Link(temporary, path) // a rename would replace
	if err == nil {
		err = os.Remove(temporary)
	}
	return info, err
}

// checkFree returns why path cannot be used, or else whether there is a socket to replace.
func checkFree(path string, takePlace bool) (there bool, err error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case info.Mode().Type() != fs.ModeSocket:
		return true, fmt.Errorf("%w: %s is not a socket", ErrTaken, path)
	case !takePlace && Listens(path):
		return true, fmt.Errorf("%w: another process listens at %s", ErrTaken, path)
	}
	return true, nil
}

// Listens reports whether a process listens at a path. Only a refusal by the kernel proves that none does.
func Listens(path string) bool {
	c, err := net.DialTimeout("unix", path, dialTimeout)
	if err == nil {
		c.Close()
	}
	return !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist)
}

// RemoveDead removes a socket at which nobody listens, as a daemon leaves it that was killed. What else stands at
// path stays.
func RemoveDead(path string) (err error) {
	for _, name := range [...]string{path, path + suffixNew} {
		info, serr := os.Lstat(name)
		if serr != nil || info.Mode().Type() != fs.ModeSocket || Listens(name) {
			continue
		}
		if rerr := os.Remove(name); !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}
