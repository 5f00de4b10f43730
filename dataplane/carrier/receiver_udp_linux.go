package carrier

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/udp"
	"github.com/overlayd/overlayd/encap"
)

const (
	// receiveSlots is the number of receives that one system call does at most.
	receiveSlots = 64
	// receiveBytes is about how many bytes one system call brings at most. What it brings is copied twice: out of the kernel and, once
	// all of it was judged, back to the kernel. That takes half the time if it is still in the processor's second-level cache.
	receiveBytes = 256 << 10
	// slotStride is the distance of their buffers: room for any datagram, and then
	// some, so that the starts of all do not share one set of the processor's cache.
	slotStride = 64<<10 + 4<<10 + 192
)

// udpReceiver is a receiver on a UDP socket of the port that the VTEPs send to. One system call
// takes all that has arrived. Everything of that port comes in
// here; the VNI in each datagram says which network it is for (dataplane/userspace, demux.go).
type udpReceiver struct {
	socketGuesser
	seat // the socket

	arena   []byte // receiveSlots buffers
	msgs    [receiveSlots]mmsghdr
	iovs    [receiveSlots]unix.Iovec
	from    [receiveSlots]udp.Sockaddr
	control [receiveSlots]receiveControl
	n, next int // messages received, and handed out
	slots   int // that the next system call may use
	cutter  cutter

	read    func(fd uintptr) bool // made once: a closure per packet would be an allocation
	readNow func(fd uintptr)
	err     error

	batches atomic.Uint64 // system calls that brought something
}

// receiveControl has room for the control messages of one receive: UDP_GRO, and
// IP_TOS or IPV6_TCLASS, none of them above 24 bytes.
type receiveControl [64]byte

// newUDPReceiver makes a receiver on a bound socket, which is then its own.
func newUDPReceiver(s *socket) (*udpReceiver, error) {
	arena, err := NewArena(receiveSlots * slotStride)
	if err != nil {
		s.close()
		return nil, fmt.Errorf("open UDP receiver: %w", err)
	}
	r := &udpReceiver{arena: arena}
	r.sit(s)
	for i := range r.msgs {
		r.iovs[i].Base = &r.arena[i*slotStride]
		r.iovs[i].SetLen(slotStride)
		h := &r.msgs[i].hdr
		h.Iov = &r.iovs[i]
		h.SetIovlen(1)
		h.Name = (*byte)(unsafe.Pointer(&r.from[i].Raw))
		h.Control = &r.control[i][0]
	}
	r.n = receiveSlots
	r.rearm()
	r.slots = receiveSlots
	r.read, r.readNow = r.tryRead, func(fd uintptr) { r.tryRead(fd) }
	return r, nil
}

// Receive implements Receiver.
func (r *udpReceiver) Receive(d *Datagram, flush func()) error {
	for !r.cutter.next() {
		if r.next < r.n {
			r.open(r.next)
			r.next++
			continue
		}
		if r.n > 0 {
			flush()
			r.rearm()
		}
		if err := r.wait(); err != nil {
			return err
		}
	}
	*d = r.cutter.Datagram
	return nil
}

// wait reads what has arrived, and waits until something does. A receiver that is to move does so once
// nothing is left.
func (r *udpReceiver) wait() error {
	for {
		if r.isToMove() {
			r.n, r.err = 0, nil
			if err := r.at.conn.Control(r.readNow); err != nil || r.err != nil || r.n > 0 {
				return errors.Join(err, r.err)
			}
			r.move()
		}
		if err := r.at.conn.Read(r.read); err == nil {
			return r.err
		} else if !r.isToMove() {
			return err
		}
	}
}

// rearm makes the used messages as they were before the system call, and expects more of the same size.
func (r *udpReceiver) rearm() {
	bytes := 0
	for i := range r.n {
		h := &r.msgs[i].hdr
		h.Namelen = uint32(unsafe.Sizeof(r.from[i].Raw))
		h.SetControllen(len(r.control[i]))
		bytes += int(r.msgs[i].len)
	}
	r.slots = slotsFor(r.n, bytes)
	r.n, r.next = 0, 0
}

// slotsFor returns how many messages the size of n that were received makes receiveBytes.
func slotsFor(n, bytes int) int {
	return min(max(receiveBytes*n/max(bytes, 1), 1), receiveSlots)
}

// tryRead does one recvmmsg. It returns whether Receive is to return, or else to wait.
func (r *udpReceiver) tryRead(fd uintptr) bool {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&r.msgs[0])), uintptr(r.slots), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		case 0:
			r.n, r.err = int(n), nil
			r.batches.Add(1)
		default:
			r.n, r.err = 0, os.NewSyscallError("recvmmsg", errno)
		}
		return true
	}
}

// open gives message i to the cutter.
func (r *udpReceiver) open(i int) {
	h := &r.msgs[i].hdr
	gro, ecn := parseControl(r.control[i][:min(int(h.Controllen), len(r.control[i]))])
	r.cutter.From, r.cutter.ECN = r.from[i].Addr(), ecn
	off := i * slotStride
	r.cutter.init(r.arena[off:off+int(r.msgs[i].len)], gro)
}

// parseControl reads what the kernel tells about one receive: the length that
// datagrams were joined by, or 0, and the ECN field of the outer header.
func parseControl(b []byte) (gro int, ecn encap.ECN) {
	for len(b) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
		n := int(h.Len)
		if n < unix.SizeofCmsghdr || n > len(b) {
			return gro, ecn
		}
		switch data := b[min(unix.CmsgLen(0), n):n]; {
		case len(data) == 0:
		case h.Level == unix.SOL_UDP && h.Type == unix.UDP_GRO && len(data) >= 4:
			gro = int(*(*int32)(unsafe.Pointer(&data[0])))
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS:
			ecn = encap.ECN(data[0] & 3)
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS && len(data) >= 4:
			ecn = encap.ECN(*(*int32)(unsafe.Pointer(&data[0])) & 3)
		}
		b = b[min(unix.CmsgSpace(n-unix.SizeofCmsghdr), len(b)):]
	}
	return gro, ecn
}

func (r *udpReceiver) close() {
	r.seat.close()
	FreeArena(r.arena)
	r.arena = nil
}
