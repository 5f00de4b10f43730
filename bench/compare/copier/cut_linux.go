package copier

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/encap"
)

const (
	sourcePorts = 16 // as overlayd has
	headerRoom  = encap.HeaderLen + encap.MaxSplitHeader
)

// segmenter sends superpackets in segments, a run of them in each system call (UDP_SEGMENT), and copies no payload.
type segmenter struct {
	to       unix.RawSockaddrInet4
	sockets  [sourcePorts]int
	splitter encap.Splitter
	headers  [encap.MaxRunDatagrams * headerRoom]byte
	parts    [2 * encap.MaxRunDatagrams]unix.Iovec
	control  []byte // of one message, with UDP_SEGMENT
}

func newSegmenter(cfg *Config) (*segmenter, error) {
	s := &segmenter{
		to:      unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: cfg.Peer.As4()},
		control: make([]byte, unix.CmsgSpace(2)),
	}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&s.to.Port))[:], encap.DefaultPort)
	h := (*unix.Cmsghdr)(unsafe.Pointer(&s.control[0]))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	for i := range s.sockets {
		var err error
		if s.sockets[i], err = openSocket(cfg.Local, 0); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// send sends a superpacket, each segment behind the headers in t.
func (s *segmenter) send(ip []byte, o encap.Offload, t *encap.Template) error {
	if err := s.splitter.InitOffload(ip, o); err != nil {
		return err
	}
	fd := s.sockets[encap.QuickHash(ip)%sourcePorts]
	binary.NativeEndian.PutUint16(s.control[unix.CmsgLen(0):], uint16(encap.HeaderLen+s.splitter.HeaderLen()+int(o.Size)))
	for s.splitter.Left() > 0 {
		s.run(fd, s.splitter.RunLen(encap.RunLimit{Datagrams: encap.MaxRunDatagrams, Bytes: encap.MaxRunBytes}), t)
	}
	return nil
}

// run sends the next n segments. That the peer is not there yet is no error.
func (s *segmenter) run(fd, n int, t *encap.Template) {
	for i := range n {
		h := s.headers[i*headerRoom:][:headerRoom]
		t.Put(h, encap.EtherTypeIPv4)
		l, payload, _ := s.splitter.Next(h[encap.HeaderLen:])
		s.parts[2*i], s.parts[2*i+1] = iovec(h[:encap.HeaderLen+l]), iovec(payload)
	}
	m := unix.Msghdr{
		Name: (*byte)(unsafe.Pointer(&s.to)), Namelen: unix.SizeofSockaddrInet4, Iov: &s.parts[0], Iovlen: uint64(2 * n),
		Control: &s.control[0], Controllen: uint64(len(s.control)),
	}
	_, _, _ = unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&m)), 0)
}
