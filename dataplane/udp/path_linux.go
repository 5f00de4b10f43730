package udp

import (
	"fmt"
	"net/netip"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PathProbe asks the kernel what a path takes: the MTU of the route, or what ICMP
// from the underlay has made of it.
type PathProbe struct {
	mu     sync.Mutex // it is rarely taken: once per path that turns out narrow
	fd     int
	closed bool
	v6     bool
}

// OpenPathProbe returns a probe for paths from local.
func OpenPathProbe(local netip.Addr) (*PathProbe, error) {
	fd, err := Open(netip.AddrPortFrom(local, 0), SetDF)
	if err == nil {
		if err = ReceiveNothing(fd); err == nil {
			return &PathProbe{fd: fd, v6: local.Is6()}, nil
		}
		unix.Close(fd)
	}
	return nil, fmt.Errorf("set up path MTU socket: %w", err)
}

// Close releases the probe: from then on MTU returns os.ErrClosed.
func (q *PathProbe) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	unix.Close(q.fd)
}

// MTU returns the longest underlay packet for a, in bytes. It sends nothing.
func (q *PathProbe) MTU(a *Sockaddr) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, os.ErrClosed
	}
	// Connecting again looks up the route again.
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(q.fd), uintptr(unsafe.Pointer(&a.Raw)), uintptr(a.Len))
	if errno != 0 {
		return 0, os.NewSyscallError("connect", errno)
	}
	level, name := unix.IPPROTO_IP, unix.IP_MTU
	if q.v6 {
		level, name = unix.IPPROTO_IPV6, unix.IPV6_MTU
	}
	mtu, err := unix.GetsockoptInt(q.fd, level, name)
	return mtu, os.NewSyscallError("getsockopt", err)
}

// IsIPv6 tells the family of the probe.
func (q *PathProbe) IsIPv6() bool { return q.v6 }
