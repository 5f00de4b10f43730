package carrier

import (
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

// refused is for a run that the kernel did not take. If that may be because of
// UDP_SEGMENT, its datagrams are sent one by one.
func (u *udpTransmitter) refused(b *batcher, r *run, fd int, errno unix.Errno, c *Counters) {
	if r.n > 1 {
		switch errno {
		case unix.EIO, unix.EOPNOTSUPP, unix.ENOPROTOOPT: // EIO: no checksum offload there, before Linux 6.11
			u.sockets.giveUp(errno)
			u.replay(b, r, fd, c)
			return
		case unix.EMSGSIZE, unix.EINVAL: // the path to this peer takes no such segments unless in fragments; EINVAL before Linux 6.14
			u.replay(b, r, fd, c)
			return
		}
	}
	u.drop(b, r, errno, c)
}

// drop is for what the kernel refused for good.
func (u *udpTransmitter) drop(b *batcher, r *run, errno unix.Errno, c *Counters) {
	if errno != unix.EMSGSIZE {
		b.drop(r, dataplane.DropWriteError, c)
		return
	}
	r.entry.Peer.TurnAway() // else nobody looks at a path by which nothing passes
	if ps := u.sockets.paths.Load(); ps != nil {
		ps.refused(r.entry.Peer) // from the next packet on its sender is told
	}
	b.drop(r, dataplane.DropTooBig, c)
}

// replay sends the datagrams of a run one by one. A packet is dropped if one of its datagrams is refused; of a superpacket in several runs only those of the last run count.
func (u *udpTransmitter) replay(b *batcher, r *run, fd int, c *Counters) {
	c.Offload.Fallbacks++
	packet, first := run{entry: r.entry}, unix.Errno(0) // the datagrams of one packet, and why one of them was refused
	for i := r.first; i != 0; i = b.segments[i].next {
		s := &b.segments[i]
		errno := u.sendOne(r, s, fd)
		if first == 0 {
			first = errno
		}
		if packet.first == 0 {
			packet.first = i
		}
		packet.last = i
		if s.ends > 0 {
			packet.packets = 1
		} else if s.next != 0 {
			continue
		}
		if first != 0 {
			u.drop(b, &packet, first, c)
		} else {
			c.Sent(r.entry.Peer, packet.packets, int(s.ends))
		}
		packet, first = run{entry: r.entry}, 0
	}
}

// sendOne sends one datagram of a run.
func (u *udpTransmitter) sendOne(r *run, s *segment, fd int) (errno unix.Errno) {
	msgs, iovs := u.nMsgs, u.nIovs
	u.addIovecs(s)
	u.addMessage(r, iovs, 1)
	for errno = unix.EINTR; errno == unix.EINTR; {
		_, errno = u.sendmmsg(fd, u.msgs[msgs:msgs+1])
	}
	u.nMsgs, u.nIovs = msgs, iovs
	return errno
}
