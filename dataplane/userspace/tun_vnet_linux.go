package userspace

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

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
	packets  [batchPackets][2]int // where the packets read are: start of the headroom, and end
	n, next  int                  // packets read, and handed out
	packet   packet               // that was handed out last
	read     func(fd uintptr) bool
	err      error
}

// openQueues attaches n queues to the TUN device of that name. The first sets what
// the device has; the others join through water, which does not know vnet headers,
// for the device has them already.
func openQueues(name string, mode tun.Mode, n, headroom int, offloads Offloads) (qs []*vnetQueue, mask int, err error) {
	defer func() {
		if err != nil {
			for _, q := range qs {
				q.close()
			}
			qs = nil
		}
	}()
	fd, err := tun.Attach(name, mode)
	if err != nil {
		return nil, 0, err
	}
	mask, err = tun.SetOffloads(fd, offloads.has(TUNGSO))
	if err != nil {
		unix.Close(fd)
		return nil, 0, fmt.Errorf("set up %s: %w", name, err)
	}
	file := os.NewFile(uintptr(fd), name)
	for {
		q, err := newVnetQueue(name, file, mask, headroom, offloads)
		if err != nil {
			return qs, mask, err
		}
		qs = append(qs, q)
		if len(qs) == n {
			return qs, mask, nil
		}
		if file, err = tun.OpenFile(name, true); err != nil {
			return qs, mask, err
		}
	}
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
		q.arena, err = newArena(batchBytes + headroom + maxPacket)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("attach to %s: %w", name, err)
	}
	q.read = q.tryRead
	return q, nil
}

// Read implements queue.
func (q *vnetQueue) Read(flush func()) (*packet, error) {
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
	q.packet = packet{buf: b, at: q.headroom, Offload: decodeVnet(b[q.headroom-vnetLen:q.headroom], b[q.headroom:])}
	return &q.packet, nil
}

// tryRead reads what there is, up to the limits. It returns whether Read is to return,
// or else to wait. The vnet header takes the last bytes of the headroom.
func (q *vnetQueue) tryRead(fd uintptr) bool {
	for end := 0; q.n < batchPackets && end < batchBytes; {
		start := end + q.headroom - vnetLen
		n, err := unix.Read(int(fd), q.arena[start:start+vnetLen+maxPacket])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			q.err = nil
			if err != unix.EAGAIN && q.n == 0 { // else it comes again
				q.err = err
				return true
			}
			return q.n > 0
		}
		q.packets[q.n] = [2]int{end, start + max(n, vnetLen)}
		q.n++
		end = (start + n + 63) &^ 63 // each packet begins a cache line
	}
	q.err = nil
	return true
}

// Answer implements queue.
func (q *vnetQueue) Answer(p *packet) { _, _ = unix.Write(q.fd, p.buf[p.at-vnetLen:]) }

// newWriter implements queue.
func (q *vnetQueue) newWriter() writer { return newVnetWriter(&tunDevice{fd: q.fd}, q.tcp, q.udp) }

func (q *vnetQueue) stop() { stopReading(q.file) }

func (q *vnetQueue) close() {
	q.file.Close()
	freeArena(q.arena)
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
		_, _, errno := unix.Syscall(unix.SYS_WRITEV, uintptr(d.fd), uintptr(unsafe.Pointer(&d.iovs[0])), uintptr(len(parts)+1))
		if errno != unix.EINTR {
			return errno == 0, errno == unix.EINVAL
		}
	}
}
