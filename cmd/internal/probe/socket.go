package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// ErrNoSocket says that this host gives this process no ICMP socket.
var ErrNoSocket = errors.New("no ICMP socket")

// fixOf says what to do about an error of a socket.
func fixOf(err error) string {
	switch {
	case errors.Is(err, ErrNoSocket):
		return "give overlayd CAP_NET_RAW, or its group a place in sysctl net.ipv4.ping_group_range; --probe-interval=0 does without"
	case errors.Is(err, unix.EPERM):
		return "let the firewall of this host pass ICMP echo requests"
	}
	return "see whether this host has a route to it, and its own overlay address"
}

// socket sends and receives ICMP messages of one family.
type socket struct {
	file  *os.File
	raw   syscall.RawConn
	v6    bool
	plain bool // a datagram socket: it has no IP header, and its identifier is the kernel's choice
	id    uint16

	buf []byte // a datagram socket tells the length of what fits only
	oob [512]byte
}

// firstBuf is longer than what arrives by a link with jumbo frames, in bytes. Some links have an MTU of up to 64 KiB.
const firstBuf = 16 << 10

// openSocket opens a socket in the network namespace of the calling thread: a datagram socket, for which no
// capability is needed, if net.ipv4.ping_group_range allows that, else a raw one. Its error wraps ErrNoSocket.
func openSocket(v6 bool) (transport, error) {
	family, proto := unix.AF_INET, unix.IPPROTO_ICMP
	if v6 {
		family, proto = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	s := &socket{v6: v6, plain: true, id: uint16(rand.Uint32()), buf: make([]byte, firstBuf)}
	const flags = unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|flags, proto)
	if err != nil {
		s.plain = false
		fd, err = unix.Socket(family, unix.SOCK_RAW|flags, proto)
	}
	if err == nil {
		if err = s.prepare(fd); err != nil {
			unix.Close(fd)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoSocket, err)
	}
	s.file = os.NewFile(uintptr(fd), "icmp")
	if s.raw, err = s.file.SyscallConn(); err != nil {
		s.file.Close()
		return nil, fmt.Errorf("%w: %w", ErrNoSocket, err)
	}
	return s, nil
}

// prepare sets Don't Fragment whatever is known of the path, and asks for errors. Packets that are not for
// this socket are left to the kernel.
func (s *socket) prepare(fd int) error {
	set := func(level, name, value int) error { return unix.SetsockoptInt(fd, level, name, value) }
	var err error
	if s.v6 {
		err = errors.Join(set(unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE), set(unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1),
			set(unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1))
	} else {
		err = errors.Join(set(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE), set(unix.IPPROTO_IP, unix.IP_RECVERR, 1))
	}
	if s.plain {
		return errors.Join(err, s.bind(fd))
	}
	return errors.Join(err, s.filter(fd))
}

// bind gives a datagram socket its identifier.
func (s *socket) bind(fd int) error {
	var any unix.Sockaddr = &unix.SockaddrInet4{}
	if s.v6 {
		any = &unix.SockaddrInet6{}
	}
	if err := unix.Bind(fd, any); err != nil {
		return err
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		s.id = uint16(a.Port)
	case *unix.SockaddrInet6:
		s.id = uint16(a.Port)
	}
	return nil
}

// filter lets a raw socket receive only replies to its own identifier.
func (s *socket) filter(fd int) error {
	_, wanted := echoTypes(s.v6)
	const idAt = 4
	program := []bpf.Instruction{bpf.LoadMemShift{Off: 0}} // X: the length of the IPv4 header
	if s.v6 {
		program[0] = bpf.LoadConstant{Dst: bpf.RegX} // an ICMPv6 socket gets no IP header
	}
	program = append(program,
		bpf.LoadIndirect{Size: 1}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(wanted), SkipTrue: 3},
		bpf.LoadIndirect{Off: idAt, Size: 2}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(s.id), SkipTrue: 1},
		bpf.RetConstant{Val: 1 << 18}, bpf.RetConstant{})
	code, err := bpf.Assemble(program)
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(code))
	for i, c := range code {
		filter[i] = unix.SockFilter{Code: c.Op, Jt: c.Jt, Jf: c.Jf, K: c.K}
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// send sends a request and returns the checksum by which an error may quote it.
func (s *socket) send(r *request) (sum uint16, err error) {
	b, err := r.marshal(s.id)
	if err != nil {
		return 0, err
	}
	oob, to := s.control(r), s.sockaddr(r.to)
	failed := s.raw.Control(func(fd uintptr) {
		// The first error may be that of an earlier packet.
		if _, err = unix.SendmsgN(int(fd), b, oob, to, unix.MSG_DONTWAIT); err != nil {
			_, err = unix.SendmsgN(int(fd), b, oob, to, unix.MSG_DONTWAIT)
		}
	})
	return sumOf(b), errors.Join(failed, err)
}

func (s *socket) sockaddr(a netip.Addr) unix.Sockaddr {
	if s.v6 {
		return &unix.SockaddrInet6{Addr: a.As16()}
	}
	return &unix.SockaddrInet4{Addr: a.As4()}
}

// control returns the control messages of a request: its source and its TTL.
func (s *socket) control(r *request) (oob []byte) {
	ttlLevel, ttlType := int32(unix.IPPROTO_IP), int32(unix.IP_TTL)
	if s.v6 {
		ttlLevel, ttlType = unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT
	}
	switch {
	case r.from.Is4():
		oob = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: r.from.As4()})
	case r.from.Is6():
		oob = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: r.from.As16()})
	}
	if r.ttl == 0 {
		return oob
	}
	b := make([]byte, unix.CmsgSpace(4))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = ttlLevel, ttlType
	h.SetLen(unix.CmsgLen(4))
	binary.NativeEndian.PutUint32(b[unix.CmsgLen(0):], uint32(r.ttl))
	return append(oob, b...)
}

// receive waits for a message. Its answer is valid until the next call. An error means that the socket is closed.
func (s *socket) receive() (a answer, err error) {
	err = s.raw.Read(func(fd uintptr) bool {
		var empty bool
		a, empty = s.take(int(fd))
		return !empty
	})
	return a, err
}

// take reads one reply, or else one error.
func (s *socket) take(fd int) (a answer, empty bool) {
	n, _, _, from, err := unix.Recvmsg(fd, s.buf, nil, unix.MSG_DONTWAIT)
	if err == nil && n == len(s.buf) { // maybe there was more of it; the next one is read whole
		s.buf = make([]byte, 2*len(s.buf))
		return answer{}, false
	}
	if err == nil {
		return s.readReply(s.buf[:n], addrOf(from)), false
	}
	n, oobn, _, to, failed := unix.Recvmsg(fd, s.buf, s.oob[:], unix.MSG_DONTWAIT|unix.MSG_ERRQUEUE)
	if failed == nil {
		return s.readError(s.buf[:n], s.oob[:oobn], addrOf(to)), false
	}
	return answer{}, err == unix.EAGAIN // else it was a pending error, and there may be more
}

// readReply reads a message.
func (s *socket) readReply(b []byte, from netip.Addr) answer {
	if !s.v6 && !s.plain {
		b = b[ipv4HeaderLen(b):]
	}
	a := answer{outcome: reply, from: from, size: len(b)}
	if _, t := echoTypes(s.v6); !a.readEcho(b, t, s.id) {
		return answer{}
	}
	return a
}

// ipv4HeaderLen returns the length of the IPv4 header of b, at most that of b.
func ipv4HeaderLen(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	return min(int(b[0]&0xf)*4, len(b))
}

// readError reads an error: b is the request as it was quoted, from its ICMP header on, and to where that went.
func (s *socket) readError(b, oob []byte, to netip.Addr) answer {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return answer{}
	}
	for _, m := range messages {
		v4 := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR
		v6 := m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if !v4 && !v6 {
			continue
		}
		a := readExtended(m.Data, s.v6)
		if request, _ := echoTypes(s.v6); a.outcome == junk || !a.readEcho(b, request, s.id) {
			return answer{}
		}
		a.to = to
		return a
	}
	return answer{}
}

// readExtended reads a struct sock_extended_err and the address behind it (linux/errqueue.h):
//
//	ee_errno 4, ee_origin 1, ee_type 1, ee_code 1, ee_pad 1, ee_info 4, ee_data 4, struct sockaddr
func readExtended(b []byte, v6 bool) answer {
	const originICMP, originICMP6 = 2, 3
	const infoAt, addrAt = 8, 16
	if len(b) < addrAt || b[4] != originICMP && b[4] != originICMP6 {
		return answer{}
	}
	a := answer{outcome: outcomeOf(v6, b[5], b[6])}
	if a.outcome == tooBig {
		a.mtu = int(binary.NativeEndian.Uint32(b[infoAt:]) & 0xffff)
	}
	switch from := b[addrAt:]; {
	case !v6 && len(from) >= 8: // struct sockaddr_in: family 2, port 2, address 4
		a.from = netip.AddrFrom4([4]byte(from[4:]))
	case v6 && len(from) >= 24: // struct sockaddr_in6: family 2, port 2, flow 4, address 16
		a.from = netip.AddrFrom16([16]byte(from[8:]))
	}
	return a
}

func addrOf(s unix.Sockaddr) netip.Addr {
	switch a := s.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(a.Addr)
	}
	return netip.Addr{}
}

// close ends receive.
func (s *socket) close() { s.file.Close() }
