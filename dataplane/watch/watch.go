// Package watch keeps a subscription to netlink notifications, of rtnetlink or nfnetlink, and
// calls back when it is time to compare the kernel's state with the wanted one. Each part of an
// overlay that repairs changes of others has one:
//
//	watch.go  Subscription: the socket, its reader, Drain
//	loop.go   Run: when to look (how long to wait is pace.Spread's decision)
//
// A notification means only that something may have changed. Comparing and repairing is the
// part's own business.
package watch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/pace"
)

// receiveBuffer is the socket's limit on unread notifications, in bytes. A Sync of many
// peers causes notifications faster than anybody reads them.
const receiveBuffer = 4 << 20

// readBuffer is the room for one notification at first, in bytes: a daemon has a dozen of these. That of a link takes 1.5 KB, and that of a link
// with many virtual functions may take more than this. Others are shorter.
const readBuffer = 4 << 10

// DeafResync is the Resync of a part whose Groups are Deaf.
const DeafResync = 5 * time.Second

// Groups are the multicast groups of one netlink protocol to subscribe to.
type Groups struct {
	Protocol int   // unix.NETLINK_ROUTE or unix.NETLINK_NETFILTER
	Must     []int // Open fails without them
	May      []int // old kernels do not have these
	Deaf     bool  // join none of them: only Wake and Loop.Resync are a reason to look (for tests)
}

// Subscription is a socket that receives notifications. One goroutine calls Run, once;
// Wake and Close may be called from any.
type Subscription struct {
	file *os.File // non-blocking and in Go's poller, so that a deadline ends a read
	wake chan struct{}
}

// Open subscribes to g in the network namespace of the calling thread. The kernel keeps
// notifications from now on, so that Run sees what changes between Open and Run.
func Open(g Groups) (*Subscription, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, g.Protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	s := &Subscription{file: os.NewFile(uintptr(fd), "netlink"), wake: make(chan struct{}, 1)}
	if err := subscribe(fd, g); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func subscribe(fd int, g Groups) error {
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("bind netlink socket: %w", err)
	}
	if g.Deaf {
		return nil
	}
	// Without a larger buffer notifications are lost more often, and everything is read again.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	for _, group := range g.Must {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group); err != nil {
			return fmt.Errorf("join netlink group %d: %w", group, err)
		}
	}
	for _, group := range g.May {
		_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
	}
	return nil
}

// Wake asks Run for a look, as a notification does. It never waits, and may be called
// before Run.
func (s *Subscription) Wake() { pace.Wake(s.wake) }

// Drain passes the notifications since the last call to each, and reports whether some were lost. It never waits, and is for whoever looks
// every now and then instead of calling Run. body is as in Messages.
func (s *Subscription) Drain(each func(h unix.NlMsghdr, body []byte)) (lost bool) {
	conn, err := s.file.SyscallConn()
	if err != nil {
		return false
	}
	buf := make([]byte, readBuffer)
	_ = conn.Read(func(fd uintptr) bool {
		for {
			n, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
			switch {
			case errors.Is(err, unix.EINTR):
			case errors.Is(err, unix.ENOBUFS), n == len(buf): // as in read
				lost = true
			case err != nil:
				return true
			default:
				Messages(buf[:n], each)
			}
		}
	})
	return lost
}

// Close ends the subscription, and Run. It may be called more than once.
func (s *Subscription) Close() error {
	if err := s.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close netlink socket: %w", err)
	}
	return nil
}

// SyscallConn gives access to the socket's options.
func (s *Subscription) SyscallConn() (syscall.RawConn, error) { return s.file.SyscallConn() }

// read passes notifications to l until the socket is closed or its deadline has passed.
func (s *Subscription) read(l *Loop) error {
	buf := make([]byte, readBuffer)
	for {
		n, err := s.file.Read(buf)
		if n == len(buf) { // maybe there was more of it, which is then lost
			buf = make([]byte, 2*len(buf))
			err = unix.ENOBUFS
		}
		switch {
		case errors.Is(err, unix.ENOBUFS): // the kernel dropped notifications; the socket goes on
			l.forget()
			s.Wake()
			continue
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed):
			return nil
		case err != nil:
			return fmt.Errorf("read netlink notifications: %w", err)
		}
		concerns := false
		Messages(buf[:n], func(h unix.NlMsghdr, body []byte) { concerns = l.Concerns(h, body) || concerns })
		if concerns {
			s.Wake()
		}
	}
}

// Messages splits what one read of a netlink socket returned into messages, and stops at
// the first one that does not fit. body is without the header, and valid during the call.
func Messages(b []byte, each func(h unix.NlMsghdr, body []byte)) {
	native := binary.NativeEndian // netlink(7)
	for len(b) >= unix.SizeofNlMsghdr {
		h := unix.NlMsghdr{
			Len: native.Uint32(b), Type: native.Uint16(b[4:]), Flags: native.Uint16(b[6:]),
			Seq: native.Uint32(b[8:]), Pid: native.Uint32(b[12:]),
		}
		if h.Len < unix.SizeofNlMsghdr || int64(h.Len) > int64(len(b)) {
			return
		}
		each(h, b[unix.SizeofNlMsghdr:h.Len])
		b = b[min((int(h.Len)+3)&^3, len(b)):]
	}
}
