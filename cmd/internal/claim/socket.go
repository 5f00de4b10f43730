package claim

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listen opens a Unix socket that only its owner can use, whatever the umask: the mode of a socket before it is bound
// becomes that of its file.
func Listen(network, path string) (*net.UnixListener, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var cerr error
		err := c.Control(func(fd uintptr) { cerr = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, cerr)
	}}
	l, err := config.Listen(context.Background(), network, path)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// IsSocketAt reports whether path still names the socket that info describes.
func IsSocketAt(info os.FileInfo, path string) bool {
	now, err := os.Lstat(path)
	return err == nil && os.SameFile(now, info) && now.ModTime().Equal(info.ModTime()) // file numbers are used again
}

// Peer asks the kernel who is at the other end of a Unix socket.
func Peer(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, errors.Join(err, cerr)
}
