package agent

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/bench/testbed"
)

// Drain asks for what one stream brings to an address, of either family, within a time.
type Drain struct {
	At   netip.AddrPort
	Time time.Duration
}

// Drain counts from the first byte on. The stream may end later.
func (a *Agent) Drain(in Drain, out *Received) error {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(in.At))
	if err != nil {
		return err
	}
	defer l.Close()
	l.SetDeadline(time.Now().Add(testbed.StallTimeout))
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(testbed.StallTimeout))
	b := make([]byte, 1<<20)
	n, err := c.Read(b)
	if err != nil {
		return fmt.Errorf("wait for the first byte: %w", err)
	}
	start := time.Now()
	c.SetDeadline(start.Add(in.Time))
	for err == nil {
		out.Bytes += int64(n)
		n, err = c.Read(b)
	}
	out.Elapsed = time.Since(start)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the stream ended: %w", err)
	}
	return nil
}

// Pour asks for a stream to an address that ends after a time, or when the other end does.
type Pour struct {
	To   netip.AddrPort
	Time time.Duration
}

// Pour connects, again until the other end listens, and sends as fast as it can.
func (a *Agent) Pour(in Pour, _ *Nothing) error {
	var c net.Conn
	var err error
	for deadline := time.Now().Add(testbed.StallTimeout); ; time.Sleep(2 * time.Millisecond) {
		d := net.Dialer{Deadline: deadline}
		if c, err = d.Dial("tcp", in.To.String()); err == nil || !errors.Is(err, unix.ECONNREFUSED) {
			break
		}
	}
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(in.Time))
	for b := make([]byte, 256<<10); err == nil; {
		_, err = c.Write(b)
	}
	return nil // the other end has what it wants, or tells
}

// Full is a packet of a length, IP header included, to an address.
type Full struct {
	At     netip.AddrPort
	Length int
}

func (f Full) payload() []byte {
	headers := 20 + 8
	if f.At.Addr().Is6() {
		headers = 40 + 8
	}
	return make([]byte, f.Length-headers)
}

// SendFull sends it with DF, ten times in half a second: some may be lost.
func (a *Agent) SendFull(in Full, _ *Nothing) error {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(in.At))
	if err != nil {
		return err
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO
	if in.At.Addr().Is6() {
		level, option, value = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO
	}
	if cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, value) }); cerr != nil || err != nil {
		return errors.Join(cerr, err)
	}
	for range 10 {
		if _, err := c.Write(in.payload()); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("send %d bytes with DF: %w", in.Length, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

// AwaitFull waits until one of them arrives.
func (a *Agent) AwaitFull(in Full, _ *Nothing) error {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(in.At))
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(testbed.StallTimeout))
	n, err := c.Read(make([]byte, 1<<16))
	if err == nil && n != len(in.payload()) {
		err = fmt.Errorf("%d bytes arrived, want %d", n, len(in.payload()))
	}
	return err
}
