package userspace

import (
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/tun"
)

// tunQueue is the plain queue: a TUN device without vnet header, so one complete
// packet per system call. Go's poller waits for packets, because a goroutine
// that is locked to its thread and waits there takes twice as long to wake up.
type tunQueue struct {
	name     string
	file     *os.File
	device   plainDevice // of file
	conn     syscall.RawConn
	headroom int            // in bytes
	buf      []byte         // the headroom, then room for any packet
	packet   carrier.Packet // that was read last

	read func(fd uintptr) bool // made once: a closure per packet would be an allocation
	n    int
	err  error
}

// attach opens the queue of the persistent TUN device of that name, unless it is inherited.
func attach(name string, headroom int, inherited []*os.File) (*tunQueue, error) {
	file, err := queueFile(name, false, 0, inherited)
	if err != nil {
		return nil, err
	}
	q := &tunQueue{name: name, file: file, headroom: headroom, buf: make([]byte, headroom+carrier.MaxPacket)}
	q.read = q.tryRead
	if q.conn, err = file.SyscallConn(); err == nil {
		err = q.conn.Control(func(fd uintptr) { q.device = plainDevice(fd) })
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("attach to %s: %w", name, err)
	}
	return q, nil
}

// queueFile opens the i-th queue of a TUN device, unless it is inherited.
func queueFile(name string, multi bool, i int, inherited []*os.File) (*os.File, error) {
	if i < len(inherited) {
		return inherited[i], nil
	}
	return tun.OpenFile(name, multi)
}

// Read implements queue.
func (q *tunQueue) Read(flush func()) (*carrier.Packet, error) {
	flush()
	err := q.conn.Read(q.read)
	if err == nil {
		err = q.err
	}
	if err != nil {
		return nil, fmt.Errorf("read from %s: %w", q.name, err)
	}
	q.packet = carrier.Packet{Buf: q.buf[:q.headroom+q.n], At: q.headroom}
	return &q.packet, nil
}

// tryRead does one read. It returns whether Read is to return, or else to wait.
func (q *tunQueue) tryRead(fd uintptr) bool {
	for {
		b := q.buf[q.headroom:]
		n, _, errno := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		switch q.n, q.err = int(n), nil; errno {
		case 0:
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		default:
			q.err = errno
		}
		return true
	}
}

// Answer implements queue.
func (q *tunQueue) Answer(p *carrier.Packet) { _, _ = q.device.Write(p.IP()) }

// newWriter implements queue.
func (q *tunQueue) newWriter() writer { return newPlain(q.device) }

// plainDevice writes to a queue of a TUN device without vnet headers. A write of os.File takes a lock, for which the workers that share the queue would wait.
type plainDevice int

// Write implements io.Writer.
func (d plainDevice) Write(b []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(d), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

func (q *tunQueue) stop() { stopReading(q.file) }

// source implements tunEnd.
func (q *tunQueue) source() *os.File { return q.file }

func (q *tunQueue) close() { q.file.Close() }

// stopReading wakes who reads from a file in Go's poller.
func stopReading(f *os.File) { f.SetReadDeadline(time.Unix(1, 0)) }
