package main

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// floodKind is one kind of what a host that is no peer sends to a VXLAN port.
type floodKind struct {
	name  string
	flood func(*stage) Flood // all but where to, and how long
}

func floodKinds() []floodKind {
	return []floodKind{
		{"unknown VTEP", func(s *stage) Flood { return Flood{From: s.x.underlay, Payload: s.frame(vni, s.overlay[0][0])} }},
		{"wrong VNI", func(s *stage) Flood { return Flood{From: s.x.underlay, Payload: s.frame(vni+1, s.overlay[0][0])} }},
		{"garbage", func(s *stage) Flood { return Flood{From: s.x.underlay, Payload: garbage()} }},
		{"fragments", func(s *stage) Flood {
			return Flood{From: s.x.underlay, Payload: s.frame(vni, s.overlay[0][0]), Fragments: true}
		}},
		{"a VTEP's address, an inner source of nobody's", func(s *stage) Flood {
			return Flood{From: s.a.underlay, Payload: s.frame(vni, netip.MustParseAddr("8.8.8.8"))}
		}},
	}
}

// vni is what flannel and overlayd have if nothing else is said.
const vni = 1

// frame is a datagram of VXLAN to host b, with that inner source.
func (s *stage) frame(vni uint32, src netip.Addr) []byte {
	b := make([]byte, encap.HeaderLen, 400)
	t := encap.NewTemplate(vni, dataplane.MAC(s.under[1][0], vni), encap.MAC{2, 9})
	t.Put(b, encap.EtherTypeIPv4)
	return append(b, datagram(src, s.overlay[1][0], 1, 9, make([]byte, 300))...)
}

func garbage() []byte {
	b := make([]byte, 400)
	for i := range b {
		b[i] = byte(i*7 + 3)
	}
	return b
}

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
	parts := fragment(datagram(f.From, f.To.Addr(), 30000, f.To.Port(), f.Payload))
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

// fragment cuts an IPv4 packet behind 8 bytes of its payload (RFC 791 section 3.2).
func fragment(b []byte) [2][]byte {
	first, rest := append([]byte{}, b[:28]...), append(append([]byte{}, b[:20]...), b[28:]...)
	binary.BigEndian.PutUint16(first[6:], 0x2000) // more to come
	binary.BigEndian.PutUint16(rest[6:], 1)       // 8 bytes on
	for _, f := range [][]byte{first, rest} {
		binary.BigEndian.PutUint16(f[2:], uint16(len(f)))
	}
	return [2][]byte{first, rest}
}
