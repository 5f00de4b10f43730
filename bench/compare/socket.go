package main

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Sockets here block, as those of iperf and ping do: Go's network poller would
// put its own wake-ups into every figure. Timeouts are the sockets' own.

// stallTimeout is how long a transfer may stand still before it has failed.
const stallTimeout = 3 * time.Second

// socket is the descriptor of a blocking IPv4 socket.
type socket int

func newSocket(kind, protocol int) (socket, error) {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return -1, fmt.Errorf("open socket: %w", err)
	}
	s := socket(fd)
	return s, s.setTimeout(stallTimeout)
}

func (s socket) close() { unix.Close(int(s)) }

// setTimeout bounds every accept, read and write; they return EAGAIN after it.
func (s socket) setTimeout(d time.Duration) error {
	tv := unix.NsecToTimeval(d.Nanoseconds())
	err := unix.SetsockoptTimeval(int(s), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	if err == nil {
		err = unix.SetsockoptTimeval(int(s), unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv)
	}
	return err
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

// connect waits on after a signal: the second call does not start anew.
func (s socket) connect(to netip.AddrPort) error {
	err := unix.Connect(int(s), sockaddr(to))
	for err == unix.EINTR {
		if err = unix.Connect(int(s), sockaddr(to)); err == unix.EISCONN {
			return nil
		}
	}
	return err
}

func (s socket) bind(port uint16) error {
	if err := unix.SetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return err
	}
	return unix.Bind(int(s), &unix.SockaddrInet4{Port: int(port)})
}

func (s socket) accept() (socket, error) {
	for {
		fd, _, err := unix.Accept4(int(s), unix.SOCK_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return -1, fmt.Errorf("accept: %w", err)
		}
		return socket(fd), socket(fd).setTimeout(stallTimeout)
	}
}

// read and write go on after a signal (Go's scheduler sends them).
func (s socket) read(b []byte) (int, error) {
	for {
		n, err := unix.Read(int(s), b)
		if err != unix.EINTR {
			return n, err
		}
	}
}

func (s socket) write(b []byte) (int, error) {
	for {
		n, err := unix.Write(int(s), b)
		if err != unix.EINTR {
			return n, err
		}
	}
}
