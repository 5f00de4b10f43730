package agent

import (
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/bench/testbed"
)

// SendTCP asks for streams that each send for a time.
type SendTCP struct {
	To      netip.AddrPort
	Streams int
	Time    time.Duration
}

// SendTCP connects all streams, then sends on all of them, and returns when the
// receiver has everything.
func (a *Agent) SendTCP(in SendTCP, _ *Nothing) error {
	conns := make([]testbed.Socket, 0, in.Streams)
	defer func() {
		for _, c := range conns {
			c.Close()
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
		group.Go(func() error {
			_, err := c.SendStream(testbed.Zeros(), in.Time)
			return err
		})
	}
	return group.Wait()
}

// dialTCP tries again until the receiver listens.
func dialTCP(to netip.AddrPort) (testbed.Socket, error) {
	for deadline := time.Now().Add(testbed.StallTimeout); ; time.Sleep(2 * time.Millisecond) {
		s, err := testbed.DialTCP(to)
		if err == nil || !errors.Is(err, unix.ECONNREFUSED) || time.Now().After(deadline) {
			return s, err
		}
	}
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

// Gbit is the payload in gigabits.
func (r Received) Gbit() float64 { return float64(r.Bytes) * 8 / 1e9 }

// ReceiveTCP counts payload as the receiving application gets it.
func (a *Agent) ReceiveTCP(in ReceiveTCP, out *Received) error {
	l, err := testbed.ListenTCP(netip.AddrPortFrom(netip.IPv4Unspecified(), in.Port), in.Streams)
	if err != nil {
		return err
	}
	defer l.Close()
	streams := make([]testbed.Received, in.Streams)
	var group errgroup.Group
	for i := range streams {
		s, aerr := l.Accept()
		if aerr != nil {
			err = aerr
			break
		}
		group.Go(func() (err error) {
			defer s.Close()
			streams[i], err = testbed.Zeros().Receive(s)
			return err
		})
	}
	if err := errors.Join(err, group.Wait()); err != nil {
		return err
	}
	out.Bytes, out.Elapsed = total(streams)
	return nil
}

// total sums streams, from the first byte of any to the end of the last.
func total(streams []testbed.Received) (bytes int64, elapsed time.Duration) {
	first, end := streams[0].First, streams[0].End
	for _, s := range streams {
		bytes += s.Bytes
		if s.First.Before(first) {
			first = s.First
		}
		if s.End.After(end) {
			end = s.End
		}
	}
	return bytes, end.Sub(first)
}
