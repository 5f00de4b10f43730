package udp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// trialBuffer is the room for errors, in bytes: a flood of forged ones may fill it.
const trialBuffer = 64 << 10

// Trial finds out whether a path takes a datagram. It sends one at a time, which no router may fragment, by a port
// that nobody knows, and hears what ICMP reports about that one (IP_RECVERR). It is for one goroutine.
type Trial struct {
	fd   int
	v6   bool
	sent []byte
}

// OpenTrial returns a Trial that sends from local, with a firewall mark unless that is 0.
func OpenTrial(local netip.Addr, mark uint32) (*Trial, error) {
	fd, err := Open(netip.AddrPortFrom(local, 0), SetDF)
	if err != nil {
		return nil, fmt.Errorf("set up path MTU socket: %w", err)
	}
	t := &Trial{fd: fd, v6: local.Is6()}
	level, name := unix.IPPROTO_IP, unix.IP_RECVERR
	if t.v6 {
		level, name = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	if err = ReceiveNothing(fd); err == nil {
		err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, trialBuffer))
	}
	if err == nil {
		err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, level, name, 1))
	}
	if err == nil && mark != 0 {
		err = Mark(fd, mark)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("set up path MTU socket: %w", err)
	}
	return t, nil
}

// Port returns the port that the last datagram was sent by.
func (t *Trial) Port() uint16 {
	at, _ := LocalAddr(t.fd)
	return at.Port()
}

// Close releases the socket.
func (t *Trial) Close() { unix.Close(t.fd) }

// Send sends a payload, which the caller leaves as it is until the next Send. The error is EMSGSIZE if not even this host
// takes it whole, and EAGAIN if every UDP port of this host is taken.
func (t *Trial) Send(to *Sockaddr, payload []byte) error {
	if err := t.LeavePort(); err != nil {
		return err
	}
	for t.next(func(int, []byte) {}) { // of the one before
	}
	_, _ = unix.GetsockoptInt(t.fd, unix.SOL_SOCKET, unix.SO_ERROR) // likewise; else it fails this one
	t.sent = payload
	_, _, errno := unix.Syscall6(unix.SYS_SENDTO, uintptr(t.fd), uintptr(unsafe.Pointer(&payload[0])), uintptr(len(payload)),
		unix.MSG_DONTWAIT, uintptr(unsafe.Pointer(&to.Raw)), uintptr(to.Len))
	if errno != 0 {
		return os.NewSyscallError("sendto", errno)
	}
	return nil
}

// LeavePort gives the port back. A socket that has no address to send to any more gets another port when it sends next:
// udp_disconnect, inet_autobind. The address that it sends from stays.
func (t *Trial) LeavePort() error {
	unspec := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(t.fd), uintptr(unsafe.Pointer(&unspec)), unsafe.Sizeof(unspec))
	if errno != 0 {
		return os.NewSyscallError("connect", errno)
	}
	return nil
}

// Report is what ICMP says about the datagram of a Trial.
type Report struct {
	MTU    int  // that the path takes, outer headers included; 0: nothing was said
	Proven bool // whoever says so has seen the datagram
}

// Report returns what has been said since Send. Of a report that quotes the datagram, as routers do (RFC 1812
// section 4.3.2.3, RFC 4443 section 2.4 (c)), at least the first proof bytes of the payload have to be right, or it counts for nothing.
// One that quotes only UDP's header, as RFC 792 has it, proves no more than that somebody knows the port.
func (t *Trial) Report(proof int) (r Report) {
	for t.next(func(mtu int, quoted []byte) { r.take(mtu, quoted, t.sent, proof) }) {
	}
	return r
}

// take takes one message about the datagram into account.
func (r *Report) take(mtu int, quoted, sent []byte, proof int) {
	n := min(len(quoted), len(sent))
	switch {
	case !bytes.Equal(quoted[:n], sent[:n]):
	case n >= proof:
		*r = Report{mtu, true}
	case !r.Proven:
		*r = Report{mtu, false}
	}
}

// Heard reports whether ICMP said that something was too long since the last Report, and empties the queue.
func (t *Trial) Heard() (heard bool) {
	for t.next(func(int, []byte) { heard = true }) {
	}
	return heard
}

// next reads one message of the error queue, and hands on what is about a datagram that is too long. It returns
// false if the queue is empty.
func (t *Trial) next(tooLong func(mtu int, quoted []byte)) bool {
	var data [512]byte
	var control [256]byte
	n, cn, _, _, err := unix.Recvmsg(t.fd, data[:], control[:], unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if err != nil {
		return err == unix.EINTR
	}
	readError(data[:max(n, 0)], control[:cn], tooLong)
	return true
}

// readError hands on what a message of the error queue says about a datagram that is too long.
func readError(quoted, control []byte, tooLong func(mtu int, quoted []byte)) {
	msgs, _ := unix.ParseSocketControlMessage(control)
	for _, m := range msgs {
		if mtu, ok := tooLongMTU(m); ok {
			tooLong(mtu, quoted)
		}
	}
}

// tooLongMTU reads struct sock_extended_err of IP_RECVERR and IPV6_RECVERR: the next hop's MTU that ICMP type 3 code 4
// or ICMPv6 type 2 has.
//
//	u32 errno | u8 origin, type, code, pad | u32 info: the MTU | u32 data
func tooLongMTU(m unix.SocketControlMessage) (mtu int, ok bool) {
	if len(m.Data) < 16 {
		return 0, false
	}
	is := func(level, kind int32, origin, icmp, code byte) bool {
		return m.Header.Level == level && m.Header.Type == kind && m.Data[4] == origin && m.Data[5] == icmp && m.Data[6] == code
	}
	if is(unix.IPPROTO_IP, unix.IP_RECVERR, unix.SO_EE_ORIGIN_ICMP, 3, 4) || is(unix.IPPROTO_IPV6, unix.IPV6_RECVERR, unix.SO_EE_ORIGIN_ICMP6, 2, 0) {
		return int(binary.NativeEndian.Uint32(m.Data[8:])), true
	}
	return 0, false
}
