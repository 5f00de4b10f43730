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

func (p *pathProbe) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	unix.Close(p.fd)
}

// query returns the longest underlay packet for a, in bytes. It sends nothing.
func (p *pathProbe) query(a *sockaddr) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, os.ErrClosed
	}
	// Connecting anew looks up the route anew.
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(p.fd), uintptr(unsafe.Pointer(&a.raw)), uintptr(a.len))
	if errno != 0 {
		return 0, os.NewSyscallError("connect", errno)
	}
	level, name := unix.IPPROTO_IP, unix.IP_MTU
	if p.v6 {
		level, name = unix.IPPROTO_IPV6, unix.IPV6_MTU
	}
	mtu, err := unix.GetsockoptInt(p.fd, level, name)
	return mtu, os.NewSyscallError("getsockopt", err)
}

// learn notes what the path to e takes.
func (p *pathProbe) learn(e *entry) {
	if mtu, err := p.query(&e.sockaddr); err == nil {
		e.path.mtu.Store(int32(max(mtu-encap.Overhead(e.addr), minMTU)))
	}
}

// refresh forgets, of the VTEPs of this family, what is no more: the kernel keeps what
// it learned for ten minutes.
func (s *sendPorts) refresh(t *table) {
	if s.mtu == nil {
		return
	}
	for i := range t.entries {
		e := &t.entries[i]
		if e.path.mtu.Load() == 0 || e.addr.Is6() != s.mtu.v6 {
			continue
		}
		switch mtu, err := s.mtu.query(&e.sockaddr); {
		case errors.Is(err, os.ErrClosed):
			return
		case err == nil && mtu-encap.Overhead(e.addr) >= t.mtu:
			e.path.mtu.Store(0)
		case err == nil:
			e.path.mtu.Store(int32(max(mtu-encap.Overhead(e.addr), minMTU)))
		}
	}
}
