package userspace

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// udpReceiver is the receiver on the one UDP socket of a port, one datagram per
// system call. Everything of that port comes in here; the VNI in each datagram
// says which network it is for, so a demultiplexer for several would sit on top.
type udpReceiver struct {
	file *os.File // non-blocking: Go's poller waits
	conn syscall.RawConn
	buf  []byte

	read func(fd uintptr) bool // made once: a closure per packet would be an allocation
	idle func()
	n    int
	err  error
	from sockaddr

	closedDrops atomic.Uint64 // what drops returns once the socket is closed
}

// openReceiver binds the socket that the VTEPs send to.
func openReceiver(log *slog.Logger, local netip.AddrPort) (*udpReceiver, error) {
	fd, err := openUDP(local)
	if err != nil {
		return nil, err
	}
	size, err := growBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receiveBuffer)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("set receive buffer: %w", err)
	}
	if size < receiveBuffer {
		log.Warn("UDP receive buffer is small, expect loss under load", "bytes", size, "wanted", receiveBuffer,
			"fix", "sysctl -w net.core.rmem_max=16777216")
	}
	r := &udpReceiver{file: os.NewFile(uintptr(fd), "udp "+local.String()), buf: make([]byte, bufLen)}
	if r.conn, err = r.file.SyscallConn(); err != nil {
		r.file.Close()
		return nil, fmt.Errorf("open UDP receiver: %w", err)
	}
	r.read = r.tryRead
	return r, nil
}

// Receive implements receiver. It ends with os.ErrDeadlineExceeded after stop.
func (r *udpReceiver) Receive(d *datagram, idle func()) error {
	r.idle = idle
	if err := r.conn.Read(r.read); err != nil {
		return err
	}
	d.buf, d.from = r.buf[:r.n], r.from.addr()
	return r.err
}

// tryRead does one recvfrom and says whether Receive is to return, or to wait.
func (r *udpReceiver) tryRead(fd uintptr) bool {
	for {
		r.from.len = uint32(unsafe.Sizeof(r.from.raw))
		n, _, errno := unix.Syscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&r.buf[0])), uintptr(len(r.buf)), 0,
			uintptr(unsafe.Pointer(&r.from.raw)), uintptr(unsafe.Pointer(&r.from.len)))
		switch errno {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			r.idle()
			return false
		case 0:
			r.n, r.err = int(n), nil
		default:
			r.n, r.err = 0, os.NewSyscallError("recvfrom", errno)
		}
		return true
	}
}

// drops returns how many datagrams the kernel dropped before they were read.
func (r *udpReceiver) drops() (n uint64) {
	if r.conn.Control(func(fd uintptr) { n = socketDrops(int(fd)) }) != nil {
		return r.closedDrops.Load()
	}
	return n
}

// stop makes the Receive in progress, and every later one, return at once.
func (r *udpReceiver) stop() { stopReading(r.file) }

func (r *udpReceiver) close() {
	r.closedDrops.Store(r.drops())
	r.file.Close()
}
