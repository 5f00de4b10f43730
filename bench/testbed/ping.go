package testbed

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// pingData is as much as ping(8) sends: 56 bytes.
const pingData = "overlaydoverlaydoverlaydoverlaydoverlaydoverlaydoverlayd"

// Pinger sends ICMP echo requests (RFC 792), one at a time.
type Pinger struct {
	// RTTs are the round trips in the order of the replies. A reply counts
	// however late it comes.
	RTTs []time.Duration
	// Sent counts the requests.
	Sent int

	socket   Socket
	patience time.Duration
	echo     icmp.Echo
	start    [1 << 16]time.Time // by sequence number; zero if answered
	buf      [2048]byte
}

// NewPinger makes a Pinger in the namespace of the calling thread. patience is how
// long a request waits for its reply before the next one may follow.
func NewPinger(to netip.Addr, patience time.Duration) (*Pinger, error) {
	s, err := NewSocket(unix.SOCK_RAW, unix.IPPROTO_ICMP)
	if err != nil {
		return nil, err
	}
	// A random identifier tells the pingers of one namespace apart.
	p := &Pinger{socket: s, patience: patience, echo: icmp.Echo{ID: rand.IntN(1 << 16), Data: []byte(pingData)}}
	const icmpFilter = 1 // linux/icmp.h ICMP_FILTER: a bit per type not to receive
	onlyReplies := ^(1 << ipv4.ICMPTypeEchoReply)
	err = errors.Join(
		unix.SetsockoptInt(int(s), unix.SOL_RAW, icmpFilter, onlyReplies),
		s.SetTimeout(patience),
		s.Connect(netip.AddrPortFrom(to, 0)))
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("prepare to ping %s: %w", to, err)
	}
	return p, nil
}

// Close closes the socket.
func (p *Pinger) Close() error { return p.socket.Close() }

// Lost counts the requests without a reply.
func (p *Pinger) Lost() int { return p.Sent - len(p.RTTs) }

// Once sends a request and reports whether its reply came in time. A reply with
// other bytes than were sent is an error.
func (p *Pinger) Once() (answered bool, err error) {
	p.echo.Seq = (p.echo.Seq + 1) & 0xffff
	request, err := (&icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &p.echo}).Marshal(nil)
	if err != nil {
		return false, err
	}
	start := time.Now()
	p.start[p.echo.Seq] = start
	p.Sent++
	if _, err := p.socket.Write(request); err != nil && !errors.Is(err, unix.ENOBUFS) {
		return false, fmt.Errorf("send ICMP: %w", err)
	}
	for time.Since(start) < p.patience {
		n, err := p.socket.Read(p.buf[:])
		if errors.Is(err, unix.EAGAIN) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("receive ICMP: %w", err)
		}
		if answered, err := p.take(p.buf[:n], time.Now()); answered || err != nil {
			return answered, err
		}
	}
	return false, nil
}

// take records a reply and reports whether it answers the last request. The kernel
// includes the IP header and has checked the addresses.
func (p *Pinger) take(b []byte, now time.Time) (last bool, err error) {
	const idAt, seqAt, dataAt = 4, 6, 8 // RFC 792, page 14
	if len(b) < ipv4.HeaderLen {
		return false, nil
	}
	header := int(b[0]&0xf) * 4
	if len(b) < header+dataAt || binary.BigEndian.Uint16(b[header+idAt:]) != uint16(p.echo.ID) {
		return false, nil
	}
	if !bytes.Equal(b[header+dataAt:], p.echo.Data) {
		return false, errors.New("the reply has wrong bytes")
	}
	seq := binary.BigEndian.Uint16(b[header+seqAt:])
	if !p.start[seq].IsZero() {
		p.RTTs = append(p.RTTs, now.Sub(p.start[seq]))
		p.start[seq] = time.Time{}
	}
	return int(seq) == p.echo.Seq, nil
}

// NewPinger makes a Pinger in the namespace.
func (n *Namespace) NewPinger(to netip.Addr, patience time.Duration) (p *Pinger, err error) {
	err = n.Do(func() (err error) {
		p, err = NewPinger(to, patience)
		return err
	})
	return p, err
}

// AwaitPing pings until a reply comes. If ctx ends first, it returns the cause.
func (n *Namespace) AwaitPing(ctx context.Context, to netip.Addr) error {
	const patience, pause = 250 * time.Millisecond, 20 * time.Millisecond
	var p *Pinger
	defer func() {
		if p != nil {
			p.Close()
		}
	}()
	for {
		sent := time.Now()
		// "No route" comes at once, as long as the peer is unknown.
		var err error
		if p == nil {
			p, err = n.NewPinger(to, patience)
		}
		if err == nil {
			var answered bool
			if answered, err = p.Once(); answered {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			if err == nil {
				err = errors.New("no reply")
			}
			return fmt.Errorf("ping %s: %w (%v)", to, context.Cause(ctx), err)
		case <-time.After(time.Until(sent.Add(pause))):
		}
	}
}

// Pings asks for a series of echo requests, each after the reply to the one before.
type Pings struct {
	Count int
	// MaxLost ends the series when more than that are lost.
	MaxLost int
}

// Pinged is the outcome of a series. RTT is the median round trip, 0 if no reply came.
type Pinged struct {
	Sent, Lost int
	RTT        time.Duration
}

// Ping sends a series of echo requests. Losses are counted and no error.
func (n *Namespace) Ping(ctx context.Context, to netip.Addr, want Pings) (Pinged, error) {
	p, err := n.NewPinger(to, 500*time.Millisecond)
	if err != nil {
		return Pinged{}, err
	}
	defer p.Close()
	for p.Sent < want.Count && p.Lost() <= want.MaxLost && err == nil {
		if err = context.Cause(ctx); err == nil {
			_, err = p.Once()
		}
	}
	if err != nil {
		err = fmt.Errorf("ping %s: %w", to, err)
	}
	return Pinged{Sent: p.Sent, Lost: p.Lost(), RTT: Median(p.RTTs)}, err
}
