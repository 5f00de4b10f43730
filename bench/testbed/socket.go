package testbed

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// StallTimeout is how long a transfer may stand still before it has failed.
const StallTimeout = 3 * time.Second

// Socket is the descriptor of a blocking IPv4 socket. Its timeouts are the kernel's
// (SO_RCVTIMEO, SO_SNDTIMEO): a call that takes longer returns EAGAIN.
type Socket int

// NewSocket opens a socket with StallTimeout in the namespace of the calling thread.
// kind and protocol are those of socket(2).
func NewSocket(kind, protocol int) (Socket, error) {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return -1, fmt.Errorf("open socket: %w", err)
	}
	s := Socket(fd)
	if err := s.SetTimeout(StallTimeout); err != nil {
		s.Close()
		return -1, fmt.Errorf("set timeout of socket: %w", err)
	}
	return s, nil
}

// Close closes the descriptor. It does not wake a call that blocks; Shutdown does.
func (s Socket) Close() error { return unix.Close(int(s)) }

// Shutdown ends both directions of a connection and wakes the calls that block on it.
func (s Socket) Shutdown() error { return unix.Shutdown(int(s), unix.SHUT_RDWR) }

// CloseWrite ends the sending direction of a connection.
func (s Socket) CloseWrite() error { return unix.Shutdown(int(s), unix.SHUT_WR) }

// SetTimeout bounds every connect, accept, read and write.
func (s Socket) SetTimeout(d time.Duration) error {
	tv := unix.NsecToTimeval(d.Nanoseconds())
	return errors.Join(
		unix.SetsockoptTimeval(int(s), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv),
		unix.SetsockoptTimeval(int(s), unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv))
}

// Connect connects to an IPv4 address. A signal does not end it: after EINTR the
// kernel goes on connecting, and the second call waits for that.
func (s Socket) Connect(to netip.AddrPort) error {
	addr := &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	err := unix.Connect(int(s), addr)
	for err == unix.EINTR {
		if err = unix.Connect(int(s), addr); err == unix.EISCONN {
			return nil
		}
	}
	return err
}

// Bind binds to an IPv4 address; the unspecified address means all, port 0 any.
func (s Socket) Bind(to netip.AddrPort) error {
	if err := unix.SetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return err
	}
	return unix.Bind(int(s), &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
}

// Local returns the address that the socket is bound to.
func (s Socket) Local() (netip.AddrPort, error) {
	sa, err := unix.Getsockname(int(s))
	if err != nil {
		return netip.AddrPort{}, err
	}
	a, ok := sa.(*unix.SockaddrInet4)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("socket has an address of type %T", sa)
	}
	return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)), nil
}

// Accept takes the next connection of a listening socket, with StallTimeout.
func (s Socket) Accept() (Socket, error) {
	for {
		fd, _, err := unix.Accept4(int(s), unix.SOCK_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return -1, fmt.Errorf("accept: %w", err)
		}
		return Socket(fd), Socket(fd).SetTimeout(StallTimeout)
	}
}

// Read is read(2), repeated after a signal (Go's scheduler sends them). The end of
// a stream is io.EOF.
func (s Socket) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(int(s), b)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, err
		case n == 0 && len(b) > 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// Write is write(2), repeated until all of b is written.
func (s Socket) Write(b []byte) (written int, err error) {
	for {
		n, err := unix.Write(int(s), b[written:])
		if n > 0 {
			written += n
		}
		if err != nil && err != unix.EINTR {
			return written, err
		}
		if written == len(b) {
			return written, nil
		}
	}
}
