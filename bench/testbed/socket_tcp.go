package testbed

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// ListenTCP opens a listening socket in the namespace of the calling thread.
func ListenTCP(addr netip.AddrPort, backlog int) (Socket, error) {
	s, err := NewSocket(unix.SOCK_STREAM, 0)
	if err != nil {
		return -1, err
	}
	if err = s.Bind(addr); err == nil {
		err = unix.Listen(int(s), backlog)
	}
	if err != nil {
		s.Close()
		return -1, fmt.Errorf("listen on TCP %s: %w", addr, err)
	}
	return s, nil
}

// DialTCP connects from the namespace of the calling thread. Its errors keep the
// errno, so that a caller can wait for the receiver to listen.
func DialTCP(to netip.AddrPort) (Socket, error) {
	s, err := NewSocket(unix.SOCK_STREAM, 0)
	if err != nil {
		return -1, err
	}
	if err := s.Connect(to); err != nil {
		s.Close()
		return -1, fmt.Errorf("connect to %s: %w", to, err)
	}
	return s, nil
}
