package carrier

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/udp"
	"github.com/overlayd/overlayd/encap"
)

// sendFunc is sendmmsg(2) without waiting; tests put their own in front of it.
type sendFunc func(fd int, msgs []mmsghdr) (int, unix.Errno)

// probeSegments returns how many datagrams the kernel takes at once by UDP_SEGMENT, 1 if it does
// not have that. It asks by sending some of one byte each to a socket of this host: a kernel that
// refuses them there does not have it. A later EINVAL does not prove that: before Linux 6.14 the kernel
// answers so if a path is too narrow for the segments.
func probeSegments(local netip.Addr, send sendFunc) int32 {
	fd, err := udp.Open(netip.AddrPortFrom(local, 0), 0)
	if err != nil {
		return 1
	}
	defer unix.Close(fd)
	if knowsSegments(fd) != nil {
		return 1
	}
	at, err := udp.LocalAddr(fd)
	if err != nil {
		return 1
	}
	to := udp.NewSockaddr(at)
	for _, n := range []int32{encap.MaxRunDatagramsNew, encap.MaxRunDatagrams} {
		switch sendBytes(fd, &to, int(n), send) {
		case unix.EINVAL, unix.EIO, unix.EOPNOTSUPP, unix.ENOPROTOOPT:
		case 0:
			return n
		default: // a firewall, or no memory: that does not tell
			return encap.MaxRunDatagrams
		}
	}
	return 1
}

// knowsSegments returns an error before Linux 4.18, which would send all segments as one datagram.
func knowsSegments(fd int) error {
	_, err := unix.GetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT)
	return err
}

// sendBytes sends n datagrams of one byte in one message.
func sendBytes(fd int, to *udp.Sockaddr, n int, send sendFunc) unix.Errno {
	var control sendControl
	data, end := control.put(0, unix.SOL_UDP, unix.UDP_SEGMENT, 2)
	*(*uint16)(data) = 1
	payload := make([]byte, n)
	iov := unix.Iovec{Base: &payload[0]}
	iov.SetLen(n)
	msgs := make([]mmsghdr, 1)
	h := &msgs[0].hdr
	*h = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&to.Raw)), Namelen: to.Len, Iov: &iov, Control: (*byte)(unsafe.Pointer(&control))}
	h.SetIovlen(1)
	h.SetControllen(end)
	_, errno := send(fd, msgs)
	return errno
}
