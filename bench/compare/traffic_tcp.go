package main

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// tcpBlock is what one system call moves: iperf3's default.
const tcpBlock = 128 << 10

// SendTCP asks for streams that each send for a time.
type SendTCP struct {
	To      netip.AddrPort
	Streams int
	Time    time.Duration
}

// SendTCP connects all streams, then sends on all of them, and returns when the
// receiver has everything.
func (a *Agent) SendTCP(in SendTCP, _ *Nothing) error {
	conns := make([]socket, 0, in.Streams)
	defer func() {
		for _, c := range conns {
			c.close()
		}
	}()
	for range in.Streams {
		c, err := dialTCP(in.To)
		if err != nil {
			return err
		}
		conns = append(conns, c)
	}
	var group errgroup.Group
	for _, c := range conns {
		group.Go(func() error { return sendStream(c, in.Time) })
	}
	return group.Wait()
}

// dialTCP tries again until the receiver listens.
func dialTCP(to netip.AddrPort) (socket, error) {
	for deadline := time.Now().Add(stallTimeout); ; time.Sleep(2 * time.Millisecond) {
		s, err := newSocket(unix.SOCK_STREAM, 0)
		if err != nil {
			return -1, err
		}
		if err = s.connect(to); err == nil {
			return s, nil
		}
		s.close()
		if !errors.Is(err, unix.ECONNREFUSED) || time.Now().After(deadline) {
			return -1, fmt.Errorf("connect to %s: %w", to, err)
		}
	}
}

func sendStream(s socket, d time.Duration) error {
	block := make([]byte, tcpBlock)
	for deadline := time.Now().Add(d); time.Now().Before(deadline); {
		if _, err := s.write(block); err != nil {
			return fmt.Errorf("send TCP: %w", err)
		}
	}
	if err := unix.Shutdown(int(s), unix.SHUT_WR); err != nil {
		return fmt.Errorf("end TCP: %w", err)
	}
	if _, err := s.read(block); err != nil { // returns 0 when the receiver closes
		return fmt.Errorf("wait for the receiver's end: %w", err)
	}
	return nil
}

// ReceiveTCP asks for streams to be accepted and read to their end.
type ReceiveTCP struct {
	Port    uint16
	Streams int
}

// Received is what arrived, from the first byte of any stream to the last of all.
type Received struct {
	Bytes   int64
	Packets int64 // of UDP
	Elapsed time.Duration
}

// ReceiveTCP counts payload as the receiving application gets it.
func (a *Agent) ReceiveTCP(in ReceiveTCP, out *Received) error {
	l, err := newSocket(unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer l.close()
	if err := l.bind(in.Port); err != nil {
		return fmt.Errorf("bind TCP port %d: %w", in.Port, err)
	}
	if err := unix.Listen(int(l), in.Streams); err != nil {
		return fmt.Errorf("listen on TCP port %d: %w", in.Port, err)
	}
	var total tcpTotal
	var group errgroup.Group
	for range in.Streams {
		s, aerr := l.accept()
		if aerr != nil {
			err = aerr
			break
		}
		group.Go(func() error {
			defer s.close()
			return total.receive(s)
		})
	}
	err = errors.Join(err, group.Wait())
	*out = Received{Bytes: total.bytes, Elapsed: total.last.Sub(total.first)}
	return err
}

// tcpTotal sums streams; a stream adds itself once, at its end.
type tcpTotal struct {
	mu          sync.Mutex
	bytes       int64
	first, last time.Time
}

func (t *tcpTotal) receive(s socket) error {
	var n int64
	var first time.Time
	block := make([]byte, tcpBlock)
	for {
		m, err := s.read(block)
		if err != nil {
			return fmt.Errorf("receive TCP: %w", err)
		}
		if m == 0 {
			break
		}
		if n == 0 {
			first = time.Now()
		}
		n += int64(m)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytes += n
	t.last = time.Now()
	if t.first.IsZero() || first.Before(t.first) {
		t.first = first
	}
	return nil
}
