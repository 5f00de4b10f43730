package udp

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// PathProbe asks the kernel what a path takes.
type PathProbe struct {
	local netip.Addr
	mark  uint32

	mu     sync.Mutex // it is rarely taken
	fd     int
	routes *netlink.Handle
	closed bool
}

// OpenPathProbe returns a probe for paths from local, of what has that firewall mark.
func OpenPathProbe(local netip.Addr, mark uint32) (*PathProbe, error) {
	fd, err := Open(netip.AddrPortFrom(local, 0), SetDF)
	if err != nil {
		return nil, fmt.Errorf("set up path MTU socket: %w", err)
	}
	if err = ReceiveNothing(fd); err == nil && mark != 0 {
		err = Mark(fd, mark)
	}
	q := &PathProbe{local: local, mark: mark, fd: fd}
	if err == nil {
		q.routes, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("set up path MTU socket: %w", err)
	}
	return q, nil
}

// Close releases the probe: from then on its methods return os.ErrClosed.
func (q *PathProbe) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		unix.Close(q.fd)
		q.routes.Close()
	}
}

// MTU returns the longest underlay packet for a, in bytes: the MTU of the route, or what ICMP from the underlay, which
// anybody can forge, has made of it. It sends nothing.
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
	if q.local.Is6() {
		level, name = unix.IPPROTO_IPV6, unix.IPV6_MTU
	}
	mtu, err := unix.GetsockoptInt(q.fd, level, name)
	return mtu, os.NewSyscallError("getsockopt", err)
}

// LocalMTU returns the longest underlay packet for a, in bytes, as this host is configured: the MTU of the route, else of the
// link. What ICMP says is not in it.
func (q *PathProbe) LocalMTU(a *Sockaddr) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, os.ErrClosed
	}
	// RTM_F_FIB_MATCH: the configured route, not that of the cache.
	routes, err := q.routes.RouteGetWithOptions(net.IP(a.Addr().AsSlice()), &netlink.RouteGetOptions{SrcAddr: net.IP(q.local.AsSlice()), Mark: q.mark, FIBMatch: true})
	if err != nil || len(routes) == 0 {
		return 0, fmt.Errorf("get route to %s: %w", a.Addr(), err)
	}
	r := routes[0]
	if r.MTU > 0 {
		return r.MTU, nil
	}
	link := r.LinkIndex
	if link == 0 && len(r.MultiPath) > 0 {
		link = r.MultiPath[0].LinkIndex
	}
	l, err := q.routes.LinkByIndex(link)
	if err != nil {
		return 0, fmt.Errorf("get link of route to %s: %w", a.Addr(), err)
	}
	return l.Attrs().MTU, nil
}

// IsIPv6 tells the family of the probe.
func (q *PathProbe) IsIPv6() bool { return q.local.Is6() }
