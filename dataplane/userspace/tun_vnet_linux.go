package userspace

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/tun"
	"github.com/overlayd/overlayd/encap"
)

const (
	// batchPackets and batchBytes bound what is read before it is sent.
	batchPackets = 128
	batchBytes   = 512 << 10
)

// vnetQueue is a queue of a TUN device with vnet headers. It reads all that the
// host has for it, up to a limit, before it hands out the first packet, and joins
// what it writes (vnetWriter). Go's poller waits, as with tunQueue.
type vnetQueue struct {
	name     string
	file     *os.File
	fd       int // of file
	conn     syscall.RawConn
	tcp, udp bool // what its writers join

	headroom int // in bytes
	arena    []byte
	packets  [batchPackets][2]int // of each packet read: where its headroom starts, and where it ends
	n, next  int                  // packets read, and handed out
	packet   carrier.Packet       // that was handed out last
	read     func(fd uintptr) bool
	err      error
}

// openQueues attaches n queues to the TUN device of that name, unless they are inherited. The first sets
// what the device has. The others are opened by water, which does not know vnet headers: the device has
// them by then.
func openQueues(name string, mode tun.Mode, n, headroom int, offloads Offloads, inherited []*os.File) (qs []*vnetQueue, mask int, err error) {
	defer func() {
		if err != nil {
			for _, q := range qs {
				q.close()
			}
			qs = nil
		}
	}()
	file, mask, err := firstQueue(name, mode, offloads, inherited)
	for err == nil {
		var q *vnetQueue
		if q, err = newVnetQueue(name, file, mask, headroom, offloads); err != nil {
			break
		}
		if qs = append(qs, q); len(qs) == n {
			break
		}
		file, err = queueFile(name, true, len(qs), inherited)
	}
	return qs, mask, err
}

// firstQueue opens the first queue and sets what the device has.
func firstQueue(name string, mode tun.Mode, offloads Offloads, inherited []*os.File) (file *os.File, mask int, err error) {
	if len(inherited) > 0 {
		file = inherited[0]
	} else {
		fd, err := tun.Attach(name, mode)
		if err != nil {
			return nil, 0, err
		}
		file = os.NewFile(uintptr(fd), name)
	}
	conn, err := file.SyscallConn()
	if err == nil {
		cerr := conn.Control(func(fd uintptr) { mask, err = tun.SetOffloads(int(fd), offloads.has(TUNGSO)) })
		err = errors.Join(err, cerr)
	}
	if err != nil {
		file.Close()
		return nil, 0, fmt.Errorf("set up %s: %w", name, err)
	}
	return file, mask, nil
}

// newVnetQueue makes a queue of an open file, which is then its own.
func newVnetQueue(name string, file *os.File, mask, headroom int, offloads Offloads) (*vnetQueue, error) {
	joins := offloads.has(Coalesce)
	q := &vnetQueue{name: name, file: file, headroom: headroom, tcp: joins, udp: joins && mask&tun.USO != 0}
	var err error
	if q.conn, err = file.SyscallConn(); err == nil {
		err = q.conn.Control(func(fd uintptr) { q.fd = int(fd) })
	}
	if err == nil {
		q.arena, err = carrier.NewArena(batchBytes + headroom + carrier.MaxPacket)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("attach to %s: %w", name, err)
	}
	q.read = q.tryRead
	return q, nil
}

// Read implements queue.
func (q *vnetQueue) Read(flush func()) (*carrier.Packet, error) {
	for q.next == q.n {
		if q.n > 0 {
			flush()
			q.n, q.next = 0, 0
		}
		err := q.conn.Read(q.read)
		if err == nil {
			err = q.err
		}
		if err != nil {
			return nil, fmt.Errorf("read from %s: %w", q.name, err)
		}
	}
	at := q.packets[q.next]
	q.next++
	b := q.arena[at[0]:at[1]:at[1]]
	q.packet = carrier.Packet{Buf: b, At: q.headroom, Offload: decodeVnet(b[q.headroom-vnetLen:q.headroom], b[q.headroom:])}
	return &q.packet, nil
}

// tryRead reads what there is, up to the limits. It returns whether Read is to return,
// or else to wait. The vnet header takes the last bytes of the headroom.
func (q *vnetQueue) tryRead(fd uintptr) bool {
	for end := 0; q.n < batchPackets && end < batchBytes; {
		start := end + q.headroom - vnetLen
		b := q.arena[start : start+vnetLen+carrier.MaxPacket]
		n, _, errno := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			q.err = nil
			if errno != unix.EAGAIN && q.n == 0 { // else it comes again
				q.err = errno
				return true
			}
			return q.n > 0
		}
		q.packets[q.n] = [2]int{end, start + max(int(n), vnetLen)}
		q.n++
		end = (start + int(n) + 63) &^ 63 // each packet begins a cache line
	}
	q.err = nil
	return true
}

// Answer implements queue.
func (q *vnetQueue) Answer(p *carrier.Packet) { _, _ = unix.Write(q.fd, p.Buf[p.At-vnetLen:]) }

// newWriter implements queue.
func (q *vnetQueue) newWriter() writer { return newVnetWriter(&tunDevice{fd: q.fd}, q.tcp, q.udp) }

func (q *vnetQueue) stop() { stopReading(q.file) }

// source implements tunEnd.
func (q *vnetQueue) source() *os.File { return q.file }

func (q *vnetQueue) close() {
	q.file.Close()
	carrier.FreeArena(q.arena)
	q.arena = nil
}

// tunDevice writes to a queue of a TUN device with vnet headers.
type tunDevice struct {
	fd   int
	iovs [encap.MaxCoalesced + 1]unix.Iovec
}

// writeParts implements vnetDevice.
func (d *tunDevice) writeParts(h *[vnetLen]byte, parts [][]byte) (ok, refused bool) {
	d.iovs[0].Base = &h[0]
	d.iovs[0].SetLen(vnetLen)
	for i, b := range parts {
		d.iovs[i+1].Base = &b[0]
		d.iovs[i+1].SetLen(len(b))
	}
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_WRITEV, uintptr(d.fd), uintptr(unsafe.Pointer(&d.iovs[0])), uintptr(len(parts)+1))
		if errno != unix.EINTR {
			return errno == 0, errno == unix.EINVAL
		}
	}
}
