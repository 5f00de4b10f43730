package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// Ping asks for echo requests for a time, each Gap after the answer to the one
// before: 0 is a flood.
type Ping struct {
	To        netip.Addr
	Time, Gap time.Duration
}

// Pinged is the round trips. An echo that did not come back counts as pingPatience.
type Pinged struct {
	Sent, Lost     int
	Mean, P50, P99 time.Duration
}

// pingPatience is how long the next request waits for an answer. A later answer still counts.
const pingPatience = 100 * time.Millisecond

// pingData is as much as ping(8) sends.
const pingData = 56

// Ping sends ICMP echo requests (RFC 792), which the other host's kernel answers.
func (a *Agent) Ping(in Ping, out *Pinged) error {
	p, err := newPinger(in.To)
	if err != nil {
		return err
	}
	defer p.socket.close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for deadline := time.Now().Add(in.Time); p.sent == 0 || time.Now().Before(deadline); {
		if err := p.once(); err != nil {
			return err
		}
		if in.Gap > 0 {
			time.Sleep(in.Gap)
		}
	}
	*out = Pinged{Sent: p.sent, Lost: p.sent - len(p.rtts)}
	for range out.Lost {
		p.rtts = append(p.rtts, pingPatience)
	}
	out.Mean, out.P50, out.P99 = mean(p.rtts), percentile(p.rtts, 50), percentile(p.rtts, 99)
	return nil
}

type pinger struct {
	socket socket
	echo   icmp.Echo
	start  [1 << 16]time.Time // by sequence number; zero when answered
	sent   int
	rtts   []time.Duration
	buf    [2048]byte
}

func newPinger(to netip.Addr) (*pinger, error) {
	s, err := newSocket(unix.SOCK_RAW, unix.IPPROTO_ICMP)
	if err != nil {
		return nil, err
	}
	p := &pinger{socket: s, echo: icmp.Echo{ID: os.Getpid() & 0xffff, Data: make([]byte, pingData)}}
	p.rtts = make([]time.Duration, 0, 1<<18)
	const icmpFilter = 1 // linux/icmp.h ICMP_FILTER: a bit per type not to receive
	onlyReplies := ^(1 << ipv4.ICMPTypeEchoReply)
	err = errors.Join(
		unix.SetsockoptInt(int(s), unix.SOL_RAW, icmpFilter, onlyReplies),
		s.setTimeout(pingPatience),
		s.connect(netip.AddrPortFrom(to, 0)))
	if err != nil {
		s.close()
		return nil, fmt.Errorf("prepare to ping %s: %w", to, err)
	}
	return p, nil
}

// once sends a request and reads answers until its own came, or for pingPatience.
func (p *pinger) once() error {
	p.echo.Seq = (p.echo.Seq + 1) & 0xffff
	request, err := (&icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &p.echo}).Marshal(nil)
	if err != nil {
		return err
	}
	start := time.Now()
	p.start[p.echo.Seq] = start
	p.sent++
	if _, err := p.socket.write(request); err != nil && !errors.Is(err, unix.ENOBUFS) {
		return fmt.Errorf("send ICMP: %w", err)
	}
	for time.Since(start) < pingPatience {
		n, err := p.socket.read(p.buf[:])
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("receive ICMP: %w", err)
		}
		if p.answered(p.buf[:n], time.Now()) {
			return nil
		}
	}
	return nil
}

// answered takes in a reply and reports whether it is that to the last request.
// The kernel hands over the IP header, too, and has verified the addresses.
func (p *pinger) answered(b []byte, now time.Time) bool {
	const idAt, seqAt = 4, 6 // RFC 792, page 14
	if len(b) < ipv4.HeaderLen {
		return false
	}
	header := int(b[0]&0xf) * 4
	if len(b) < header+seqAt+2 || binary.BigEndian.Uint16(b[header+idAt:]) != uint16(p.echo.ID) {
		return false
	}
	seq := binary.BigEndian.Uint16(b[header+seqAt:])
	if !p.start[seq].IsZero() {
		p.rtts = append(p.rtts, now.Sub(p.start[seq]))
		p.start[seq] = time.Time{}
	}
	return int(seq) == p.echo.Seq
}
