package carrier

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/udp"
	"github.com/overlayd/overlayd/encap"
)

// sendSockets are the sockets that all workers send by, one for each source port. The inner flow chooses the
// socket, so that routers and network cards, which spread load by the outer ports,
// keep a flow together and flows apart (RFC 7348 section 5).
//
// The sockets are not connected: a connected one would pay for an ICMP error of
// an earlier datagram by losing the next.
//
// If every port of this host is taken, all of them are one socket that receives: share_linux.go.
type sendSockets struct {
	cfg   UDPConfig
	fds   [sourcePorts + 1]int           // by source port; constant, but not what they are of
	ports [sourcePorts + 1]atomic.Uint32 // of the sockets; 0: they share one
	paths atomic.Pointer[paths]          // nil if outer packets may be fragmented (DF clear)
	// mark is that of all that is sent. It becomes 0 if this process may set none.
	mark uint32
	// segments is the number of datagrams that UDP_SEGMENT takes at once; 1 without.
	// It becomes 1 for good if the kernel refuses.
	segments atomic.Int32

	mu     sync.Mutex // of what fds are of, and of all below
	shares bool       // they share one socket
	tried  time.Time  // when they were to have ports of their own last
	closed bool
}

// openSendSockets makes the sockets, bound to the local address and a free port each. If no port is free, they share the receiving
// socket in. Without one that is an error.
func openSendSockets(cfg UDPConfig, in *socket) (*sendSockets, error) {
	s := &sendSockets{cfg: cfg, mark: cfg.Mark}
	for i := range s.fds {
		s.fds[i] = -1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.spread()
	if errors.Is(err, udp.ErrNoPort) && in != nil {
		err = s.begin(in, err)
	}
	if err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

// spread gives each source port a socket of its own. After an error all is as before. The caller holds mu.
func (s *sendSockets) spread() error {
	local := s.cfg.Local.Addr()
	df := s.cfg.DF || local.Is6()
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	for i := range s.fds {
		var o udp.Option
		if i != fragmentPort && df {
			o = udp.SetDF
		}
		fd, err := udp.Open(netip.AddrPortFrom(local, 0), o)
		if err != nil {
			return err
		}
		fds = append(fds, fd)
		if err := errors.Join(udp.ReceiveNothing(fd), s.setUp(fd)); err != nil {
			return fmt.Errorf("set up sending socket: %w", err)
		}
	}
	var ps *paths
	if df {
		var err error
		if ps, err = openPaths(s.cfg, s.mark); err != nil {
			return err
		}
	}
	if err := s.install(fds); err != nil {
		if ps != nil {
			ps.close()
		}
		return err
	}
	s.paths.Store(ps)
	s.findSegments()
	return nil
}

// setUp makes a socket one that sends.
func (s *sendSockets) setUp(fd int) error {
	_, err := udp.GrowBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, sendBuffer)
	return errors.Join(err, s.markFD(fd))
}

// install makes the descriptors by which workers send refer to other sockets. A worker always finds one socket or the other.
func (s *sendSockets) install(fds []int) error {
	var ports [sourcePorts + 1]uint16
	for i, fd := range fds {
		at, err := udp.LocalAddr(fd)
		if err != nil {
			return err
		}
		ports[i] = at.Port()
	}
	for i, fd := range fds {
		var err error
		if s.fds[i] < 0 {
			s.fds[i], err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		} else {
			err = unix.Dup3(fd, s.fds[i], unix.O_CLOEXEC)
		}
		if err != nil {
			return fmt.Errorf("set up sending socket: %w", err)
		}
		s.ports[i].Store(uint32(ports[i]))
	}
	return nil
}

// findSegments finds out how many datagrams UDP_SEGMENT takes.
func (s *sendSockets) findSegments() {
	n := int32(1)
	if s.cfg.Segment {
		n = probeSegments(s.cfg.Local.Addr(), sendmmsg)
	}
	s.segments.Store(n)
}

// markFD marks what a socket sends. A process without the right to do so goes on without, and says so once.
func (s *sendSockets) markFD(fd int) error {
	if s.mark == 0 {
		return nil
	}
	err := udp.Mark(fd, s.mark)
	if errors.Is(err, unix.EPERM) {
		s.cfg.Log.Warn("VXLAN packets of this host have no mark: rules that tell them from those of other programs will drop them",
			"mark", fmt.Sprintf("%#x", s.mark), "err", err, "fix", "give overlayd CAP_NET_ADMIN")
		s.mark, err = 0, nil
	}
	return err
}

// close may be called more than once: by then others may have descriptors of the same numbers.
func (s *sendSockets) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
}

// end is close for who holds mu.
func (s *sendSockets) end() {
	s.closed = true
	for i, fd := range s.fds {
		if fd >= 0 {
			unix.Close(fd)
		}
		s.fds[i] = -1
	}
	if ps := s.paths.Load(); ps != nil {
		ps.close()
	}
}

// giveUp ends segmentation for all: the kernel has refused it in a way that does not depend on
// the path.
func (s *sendSockets) giveUp(errno unix.Errno) {
	if from := s.segments.Load(); from > 1 && s.segments.CompareAndSwap(from, 1) {
		s.cfg.Log.Info("UDP_SEGMENT refused, sending datagrams one by one from now on", "err", errno)
	}
}

// udpTransmitter is the transmitter of one worker: a system call per batch and socket.
type udpTransmitter struct {
	sockets  *sendSockets
	v6       bool
	sendmmsg sendFunc

	// One more than a batch needs, to replay a datagram by.
	runs    [maxSegments + 1]int16 // of each message
	msgs    [maxSegments + 1]mmsghdr
	iovs    [2*maxSegments + 2]unix.Iovec
	control [maxSegments + 1]sendControl
	nMsgs   int
	nIovs   int
}

func newUDPTransmitter(sockets *sendSockets, v6 bool) *udpTransmitter {
	return &udpTransmitter{sockets: sockets, v6: v6, sendmmsg: sendmmsg}
}

// limit returns what a run may have.
func (s *sendSockets) limit() encap.RunLimit {
	return encap.RunLimit{Datagrams: int(s.segments.Load()), Bytes: encap.MaxRunBytes}
}

// mmsghdr is struct mmsghdr of sendmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
}

// sendControl has room for the control messages of one message: UDP_SEGMENT, and
// the ECN field as IP_TOS or IPV6_TCLASS, none of them above 24 bytes. It is in
// words because the kernel wants it aligned.
type sendControl [6]uint64

// put writes the header of a control message with n bytes of data at off and
// returns where the data goes and where the next message begins.
func (ctl *sendControl) put(off, level, kind, n int) (data unsafe.Pointer, next int) {
	p := unsafe.Pointer(ctl)
	h := (*unix.Cmsghdr)(unsafe.Add(p, off))
	h.Level, h.Type = int32(level), int32(kind)
	h.SetLen(unix.CmsgLen(n))
	return unsafe.Add(p, off+unix.CmsgLen(0)), off + unix.CmsgSpace(n)
}

func sendmmsg(fd int, msgs []mmsghdr) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0])), uintptr(len(msgs)), unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

// transmit implements transmitter.
func (u *udpTransmitter) transmit(b *batcher, c *Counters) {
	for s := b.ports; s != 0; s &= s - 1 {
		port := bits.TrailingZeros32(s)
		u.nMsgs, u.nIovs = 0, 0
		for i := b.head[port]; i != 0; i = b.runs[i].next {
			u.addRun(b, i)
		}
		u.send(b, u.sockets.fds[port], c)
	}
	c.Offload.TxBatches++
	b.limit = u.sockets.limit()
}

// addRun makes a message of run i.
func (u *udpTransmitter) addRun(b *batcher, i int16) {
	r, first := &b.runs[i], u.nIovs
	for s := r.first; s != 0; s = b.segments[s].next {
		u.addIovecs(&b.segments[s])
	}
	u.runs[u.nMsgs] = i
	u.addMessage(r, first, r.n)
}

func (u *udpTransmitter) addIovecs(s *segment) {
	iov := &u.iovs[u.nIovs]
	iov.Base = &s.head[0]
	iov.SetLen(len(s.head))
	u.nIovs++
	if len(s.payload) > 0 {
		iov := &u.iovs[u.nIovs]
		iov.Base = &s.payload[0]
		iov.SetLen(len(s.payload))
		u.nIovs++
	}
}

// addMessage makes a message of the iovecs since first, which are n datagrams of
// run r.
func (u *udpTransmitter) addMessage(r *run, first int, n int16) {
	h, ctl := &u.msgs[u.nMsgs].hdr, &u.control[u.nMsgs]
	u.nMsgs++
	*h = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&r.entry.Peer.sockaddr.Raw)), Namelen: r.entry.Peer.sockaddr.Len, Iov: &u.iovs[first]}
	h.SetIovlen(u.nIovs - first)
	off := 0
	if n > 1 {
		var size unsafe.Pointer
		size, off = ctl.put(off, unix.SOL_UDP, unix.UDP_SEGMENT, 2)
		*(*uint16)(size) = uint16(r.size)
	}
	if r.ecn != encap.ECNNot {
		level, kind := unix.IPPROTO_IP, unix.IP_TOS
		if u.v6 {
			level, kind = unix.IPPROTO_IPV6, unix.IPV6_TCLASS
		}
		var tos unsafe.Pointer
		tos, off = ctl.put(off, level, kind, 4)
		*(*int32)(tos) = int32(r.ecn)
	}
	if off > 0 {
		h.Control = (*byte)(unsafe.Pointer(ctl))
		h.SetControllen(off)
	}
}

// send sends all messages, and counts the packets of each run as the kernel
// answered. A full socket buffer drops packets: the network card is slower than
// the host, and waiting would only move the loss to the device.
func (u *udpTransmitter) send(b *batcher, fd int, c *Counters) {
	for i := 0; i < u.nMsgs; {
		n, errno := u.sendmmsg(fd, u.msgs[i:u.nMsgs])
		if errno == unix.EINTR {
			continue
		}
		if errno == 0 {
			for ; n > 0; n, i = n-1, i+1 {
				r := &b.runs[u.runs[i]]
				c.Sent(r.entry.Peer, r.packets, r.carried)
			}
			continue
		}
		u.refused(b, &b.runs[u.runs[i]], fd, errno, c)
		i++
	}
}
