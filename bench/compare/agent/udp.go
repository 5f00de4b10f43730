package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/bench/testbed"
)

// udpHeaders is what IPv4 and UDP put before a payload.
const udpHeaders = 20 + 8

// udpPerClock is the number of packets between two reads of the clock.
const udpPerClock = 32

// SendUDP asks for packets of one size, sent as fast as possible for a time.
type SendUDP struct {
	To   netip.AddrPort
	Size int // of the packet, IP header included
	Time time.Duration
}

// SendUDP sends one packet per system call and returns how many it sent.
func (a *Agent) SendUDP(in SendUDP, sent *int64) error {
	s, err := testbed.NewSocket(unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Connect(in.To); err != nil {
		return fmt.Errorf("connect to %s: %w", in.To, err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	payload := make([]byte, in.Size-udpHeaders)
	deadline := time.Now().Add(in.Time)
	for i := 0; i%udpPerClock != 0 || time.Now().Before(deadline); i++ {
		_, err := s.Write(payload)
		switch {
		case err == nil:
			*sent++
		case errors.Is(err, unix.ECONNREFUSED): // the receiver does not listen yet, or no longer
		case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EAGAIN): // a queue is full: a loss like any other
		default:
			return fmt.Errorf("send UDP: %w", err)
		}
	}
	return nil
}

// udpBuffer is the size of the receiving socket's buffer: what arrives while the
// receiver waits for a CPU must not count as lost by the overlay.
const udpBuffer = 8 << 20

// ListenUDP opens the socket that the next ReceiveUDP reads. Packets wait in it
// from then on.
func (a *Agent) ListenUDP(port uint16, _ *Nothing) error {
	s, err := testbed.NewSocket(unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	err = unix.SetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, udpBuffer)
	if err == nil {
		err = s.Bind(netip.AddrPortFrom(netip.IPv4Unspecified(), port))
	}
	if err != nil {
		s.Close()
		return fmt.Errorf("listen on UDP port %d: %w", port, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.udp = append(a.udp, s)
	return nil
}

// takeUDP returns the socket of ListenUDP; the caller closes it.
func (a *Agent) takeUDP() (testbed.Socket, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.udp) == 0 {
		return -1, errors.New("receive UDP: nothing listens")
	}
	s := a.udp[0]
	a.udp = a.udp[1:]
	return s, nil
}

// ReceiveUDP asks for what arrives within a time that begins with the first packet.
type ReceiveUDP struct {
	Time time.Duration
}

// ReceiveUDP counts packets as the receiving application gets them.
func (a *Agent) ReceiveUDP(in ReceiveUDP, out *Received) error {
	s, err := a.takeUDP()
	if err != nil {
		return err
	}
	defer s.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b := make([]byte, 1<<16)
	if _, err := s.Read(b); err != nil {
		return fmt.Errorf("wait for the first packet: %w", err)
	}
	if err := s.SetTimeout(20 * time.Millisecond); err != nil {
		return err
	}
	start := time.Now()
	for i := 1; out.Elapsed < in.Time; i++ {
		n, err := s.Read(b)
		switch {
		case err == nil:
			out.Packets++
			out.Bytes += int64(n)
		case !errors.Is(err, unix.EAGAIN):
			return fmt.Errorf("receive UDP: %w", err)
		}
		if err != nil || i%udpPerClock == 0 {
			out.Elapsed = time.Since(start)
		}
	}
	return nil
}
