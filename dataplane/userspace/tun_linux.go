package userspace

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tunQueue is the plain queue: a TUN device without vnet header, so one complete
// packet per system call. Go's poller waits for packets, because a goroutine
// that is locked to its thread and waits there takes twice as long to wake up.
type tunQueue struct {
	*plain // Write
	name   string
	file   *os.File
	conn   syscall.RawConn
	buf    []byte
	packet packet // that was read last

	read func(fd uintptr) bool // made once: a closure per packet would be an allocation
	n    int
	err  error
}

// attach opens the queue of the persistent TUN device of that name.
func attach(name string) (*tunQueue, error) {
	file, err := openWater(name, false)
	if err != nil {
		return nil, err
	}
	q := &tunQueue{plain: newPlain(file), name: name, file: file, buf: make([]byte, bufLen)}
	q.read = q.tryRead
	if q.conn, err = file.SyscallConn(); err != nil {
		file.Close()
		return nil, fmt.Errorf("attach to %s: %w", name, err)
	}
	return q, nil
}

// Read implements queue. It ends with os.ErrDeadlineExceeded after stop.
func (q *tunQueue) Read(flush func()) (*packet, error) {
	flush()
	err := q.conn.Read(q.read)
	if err == nil {
		err = q.err
	}
	if err != nil {
		return nil, fmt.Errorf("read from %s: %w", q.name, err)
	}
	q.packet = packet{buf: q.buf[:headroom+q.n]}
	return &q.packet, nil
}

// tryRead does one read and says whether Read is to return, or to wait.
func (q *tunQueue) tryRead(fd uintptr) bool {
	for {
		q.n, q.err = unix.Read(int(fd), q.buf[headroom:])
		switch q.err {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		}
		return true
	}
}

// stop makes the Read in progress, and every later one, return at once.
func (q *tunQueue) stop() { stopReading(q.file) }

func (q *tunQueue) close() { q.file.Close() }

// newWriter implements tun.
func (q *tunQueue) newWriter() writer { return newPlain(q.file) }

// stopReading wakes who reads from a file in Go's poller.
func stopReading(f *os.File) { f.SetReadDeadline(time.Unix(1, 0)) }

// transient reports whether a read that failed may succeed later. A system
// call's error is transient unless it says that the device or the socket is gone;
// the poller's errors, which have no errno, say just that.
func transient(err error) bool {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return false
	}
	switch errno {
	case unix.EBADF, unix.EBADFD, unix.EFAULT, unix.ENODEV, unix.EINVAL, unix.ENOTSOCK:
		return false
	}
	return true
}
