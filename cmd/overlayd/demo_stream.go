package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
)

// A stream repeats a pattern whose period has no factor in common with the
// block and segment sizes: what is lost, doubled or displaced does not compare equal.
const (
	streamPeriod = 1<<20 - 3 // prime to every power of two
	streamBlock  = 256 << 10
)

// newPattern returns a period and a block more, so that a block can be taken at
// every offset of the period.
func newPattern() []byte {
	p := make([]byte, streamPeriod+streamBlock)
	rng := rand.NewChaCha8([32]byte([]byte("overlayd demo, one fixed stream.")))
	rng.Read(p[:streamPeriod])
	copy(p[streamPeriod:], p)
	return p
}

// stream sends TCP from one namespace to an address of another for as long as d,
// checks every byte, and returns Gbit/s of payload as the receiver saw it.
func stream(ctx context.Context, from, to *demoNS, addr netip.Addr, d time.Duration) (float64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d+5*time.Second, errors.New("the stream stalled"))
	defer cancel()
	var listener net.Listener
	err := to.do(func() (err error) {
		var lc net.ListenConfig
		lc.SetMultipathTCP(false) // plain TCP, as most programs use
		listener, err = lc.Listen(ctx, "tcp4", netip.AddrPortFrom(addr, 0).String())
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("listen in %s: %w", to.name, err)
	}
	defer listener.Close()
	var client net.Conn
	err = from.do(func() (err error) {
		client, err = new(net.Dialer).DialContext(ctx, "tcp4", listener.Addr().String())
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("connect from %s: %w", from.name, err)
	}
	defer client.Close()
	server, err := listener.Accept()
	if err != nil {
		return 0, fmt.Errorf("accept in %s: %w", to.name, err)
	}
	defer server.Close()
	gbit, err := runStream(ctx, client.(*net.TCPConn), server, d)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return gbit, err
}

// runStream runs both ends of a connection. When ctx ends both end with an error.
func runStream(ctx context.Context, client *net.TCPConn, server net.Conn, d time.Duration) (float64, error) {
	stop := context.AfterFunc(ctx, func() {
		client.Close()
		server.Close()
	})
	defer stop()
	pattern := newPattern()
	var sent, received int64
	var took time.Duration
	var group errgroup.Group
	group.Go(func() (err error) {
		if sent, err = sendPattern(client, pattern, d); err != nil {
			server.Close() // what is missing would otherwise be waited for
			return fmt.Errorf("send TCP: %w", err)
		}
		return client.CloseWrite()
	})
	group.Go(func() (err error) {
		if received, took, err = receivePattern(server, pattern); err != nil {
			client.Close()
			return fmt.Errorf("receive TCP: %w", err)
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return 0, err
	}
	if sent != received {
		return 0, fmt.Errorf("received %d bytes of %d sent by TCP", received, sent)
	}
	return float64(received) * 8 / took.Seconds() / 1e9, nil
}

func sendPattern(w io.Writer, pattern []byte, d time.Duration) (sent int64, err error) {
	for start := time.Now(); time.Since(start) < d; {
		off := sent % streamPeriod
		n, err := w.Write(pattern[off : off+streamBlock])
		sent += int64(n)
		if err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// receivePattern reads to the end. took is from the first byte on.
func receivePattern(r io.Reader, pattern []byte) (received int64, took time.Duration, err error) {
	buf := make([]byte, streamBlock)
	var start time.Time
	for {
		n, err := r.Read(buf)
		if n > 0 && received == 0 {
			start = time.Now()
		}
		off := received % streamPeriod
		if !bytes.Equal(buf[:n], pattern[off:off+int64(n)]) {
			return received, 0, fmt.Errorf("wrong bytes after %d right ones", received)
		}
		received += int64(n)
		switch {
		case err == io.EOF && received == 0:
			return 0, 0, errors.New("nothing was received")
		case err == io.EOF:
			return received, time.Since(start), nil
		case err != nil:
			return received, 0, err
		}
	}
}
