package userspace

import (
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// sendSockets is the number of sockets, hence of outer source ports. A power of two.
const sendSockets = 16

// udpSender is the sender on UDP sockets, one datagram per system call. The inner
// flow chooses the socket, so that routers and network cards, which spread load by
// the outer ports, keep a flow together and flows apart (RFC 7348 section 5).
//
// The sockets are not connected: a connected one would pay for an ICMP error of
// an earlier datagram by losing the next.
type udpSender struct {
	fds [sendSockets]int
}

// openSender makes the sockets, bound to the local address and a free port each.
func openSender(local netip.Addr) (*udpSender, error) {
	s := new(udpSender)
	for i := range s.fds {
		s.fds[i] = -1
	}
	for i := range s.fds {
		fd, err := openUDP(netip.AddrPortFrom(local, 0))
		if err != nil {
			s.close()
			return nil, err
		}
		s.fds[i] = fd
		_, err = growBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, sendBuffer)
		if err := errors.Join(err, receiveNothing(fd)); err != nil {
			s.close()
			return nil, fmt.Errorf("set up sending socket: %w", err)
		}
	}
	return s, nil
}

// Send implements sender. A full socket buffer drops the packet: the network card
// is slower than the host, and waiting would only move the loss to the device.
func (s *udpSender) Send(p *packet, e *entry, c *counters) {
	fd := s.fds[encap.QuickHash(p.ip())%sendSockets]
	for {
		_, _, errno := unix.Syscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&p.buf[0])), uintptr(len(p.buf)),
			unix.MSG_DONTWAIT, uintptr(unsafe.Pointer(&e.sockaddr.raw)), uintptr(e.sockaddr.len))
		switch errno {
		case unix.EINTR:
			continue
		case 0:
			c.carried(len(p.ip()))
		case unix.EMSGSIZE:
			c.drop(dataplane.DropTooBig)
		default:
			c.drop(dataplane.DropSend)
		}
		return
	}
}

func (s *udpSender) close() {
	for _, fd := range s.fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
