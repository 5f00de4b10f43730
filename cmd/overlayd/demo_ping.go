package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
)

// demoPing is the outcome of a series of echo requests.
type demoPing struct {
	sent, lost int
	rtt        time.Duration // median of those that came back
}

// pinger sends ICMP echo requests (RFC 792) from a namespace, one at a time.
type pinger struct {
	conn *icmp.PacketConn
	to   netip.Addr
	echo icmp.Echo
	buf  [1500]byte
}

func newPinger(from *demoNS, to netip.Addr) (*pinger, error) {
	p := &pinger{to: to}
	err := from.do(func() (err error) {
		p.conn, err = icmp.ListenPacket("ip4:1", "0.0.0.0")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open ICMP socket in %s: %w", from.name, err)
	}
	// The identifier tells the replies of the pingers of one namespace apart,
	// which differ in where they ping, and the sequence those of an earlier one.
	a := to.As4()
	p.echo.ID = int(a[2])<<8 | int(a[3])
	p.echo.Seq = rand.IntN(1 << 16)
	p.echo.Data = bytes.Repeat([]byte("overlayd"), 7) // 56 bytes, as ping(8) sends
	return p, nil
}

// once returns the round trip of one echo, or os.ErrDeadlineExceeded.
func (p *pinger) once(timeout time.Duration) (time.Duration, error) {
	p.echo.Seq = (p.echo.Seq + 1) & 0xffff
	request, err := (&icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &p.echo}).Marshal(nil)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if _, err := p.conn.WriteTo(request, &net.IPAddr{IP: p.to.AsSlice()}); err != nil {
		return 0, err
	}
	if err := p.conn.SetReadDeadline(start.Add(timeout)); err != nil {
		return 0, err
	}
	for {
		n, _, err := p.conn.ReadFrom(p.buf[:])
		if err != nil {
			return 0, err
		}
		rtt := time.Since(start)
		// The socket hears all ICMP of the namespace.
		m, err := icmp.ParseMessage(1, p.buf[:n])
		if err != nil || m.Type != ipv4.ICMPTypeEchoReply {
			continue
		}
		e, ok := m.Body.(*icmp.Echo)
		if !ok || e.ID != p.echo.ID || e.Seq != p.echo.Seq {
			continue
		}
		if !bytes.Equal(e.Data, p.echo.Data) {
			return 0, fmt.Errorf("ping %s: wrong bytes came back", p.to)
		}
		return rtt, nil
	}
}

// awaitPing waits for the first echo that comes back; it ends with ctx, whose
// cause it returns.
func awaitPing(ctx context.Context, from *demoNS, to netip.Addr) error {
	p, err := newPinger(from, to)
	if err != nil {
		return err
	}
	defer p.conn.Close()
	for {
		sent := time.Now()
		_, err := p.once(250 * time.Millisecond)
		if err == nil {
			return nil
		}
		// "No route" comes at once, while the peer is not known yet.
		select {
		case <-ctx.Done():
			return fmt.Errorf("ping %s: %w (%v)", to, context.Cause(ctx), err)
		case <-time.After(time.Until(sent.Add(20 * time.Millisecond))):
		}
	}
}

// pingTimes sends count echo requests, each after the answer to the one before. One
// that is lost is no error, and when the pair has failed by that there are no more.
func pingTimes(ctx context.Context, from *demoNS, to netip.Addr, count int) (demoPing, error) {
	p, err := newPinger(from, to)
	if err != nil {
		return demoPing{}, err
	}
	defer p.conn.Close()
	var result demoPing
	var rtts []time.Duration
	for range count {
		if 100*result.lost > maxDemoLoss*count {
			break
		}
		if ctx.Err() != nil {
			return result, context.Cause(ctx)
		}
		result.sent++
		rtt, err := p.once(500 * time.Millisecond)
		switch {
		case err == nil:
			rtts = append(rtts, rtt)
		case errors.Is(err, os.ErrDeadlineExceeded):
			result.lost++
		default:
			return result, fmt.Errorf("ping %s: %w", to, err)
		}
	}
	result.rtt = median(rtts)
	return result, nil
}
