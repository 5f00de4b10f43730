package userspace

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/encap"
)

// pathProbe asks the kernel what a path takes: the MTU of the route, or what ICMP
// from the underlay has made of it.
type pathProbe struct {
	mu     sync.Mutex // it is rarely taken: once per path that turns out narrow
	fd     int
	closed bool
	v6     bool
}

func openPathProbe(local netip.Addr) (*pathProbe, error) {
	fd, err := openUDP(netip.AddrPortFrom(local, 0), setDF)
	if err == nil {
		if err = receiveNothing(fd); err == nil {
			return &pathProbe{fd: fd, v6: local.Is6()}, nil
		}
		unix.Close(fd)
	}
	return nil, fmt.Errorf("set up path MTU socket: %w", err)
}

func (q *pathProbe) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	unix.Close(q.fd)
}

// query returns the longest underlay packet for a, in bytes. It sends nothing.
func (q *pathProbe) query(a *sockaddr) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, os.ErrClosed
	}
	// Connecting again looks up the route again.
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(q.fd), uintptr(unsafe.Pointer(&a.raw)), uintptr(a.len))
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

// learn notes what the path to p takes.
func (q *pathProbe) learn(p *peer) {
	if mtu, err := q.query(&p.sockaddr); err == nil {
		p.setMTU(max(mtu-encap.Overhead(p.addr), minMTU))
	}
}

// refresh forgets what is no longer true of the paths to the peers of this family: the kernel
// keeps what it learned for ten minutes.
func (s *sendSockets) refresh(f *forwarding) {
	if s.mtu == nil {
		return
	}
	for i := range f.entries {
		p := f.entries[i].peer
		if p.mtu.Load() == 0 || p.addr.Is6() != s.mtu.v6 {
			continue
		}
		switch mtu, err := s.mtu.query(&p.sockaddr); {
		case errors.Is(err, os.ErrClosed):
			return
		case err == nil && mtu-encap.Overhead(p.addr) >= f.mtu:
			p.setMTU(0)
		case err == nil:
			p.setMTU(max(mtu-encap.Overhead(p.addr), minMTU))
		}
	}
}
