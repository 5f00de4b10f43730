package etcdrpc

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// connectTimeout is how long a first connection may take until the server has said a word, TLS included. An endpoint that says nothing is
	// given up soon, and tried again.
	connectTimeout = 2 * time.Second
	// maxConnectTimeout is how long one may take to an endpoint that has never been in time: it may be that slow. It bounds how late an
	// endpoint that was a black hole is found again, too.
	maxConnectTimeout = 8 * time.Second
)

// patience gives each address more time for its next connection if the last one did not come in time.
type patience struct {
	log *slog.Logger

	mu      sync.Mutex
	allowed map[string]time.Duration // more than connectTimeout, by address
	told    map[string]bool          // addresses whose slowness was logged
}

// awaited is a connection that is closed unless the server says something in time.
type awaited struct {
	net.Conn
	of      *patience
	address string
	began   time.Time
	allowed time.Duration
	timer   *time.Timer
	late    atomic.Bool
}

// dial makes a connection to an address, which is an *awaited.
func (p *patience) dial(ctx context.Context, address string, dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	c := &awaited{of: p, address: address, began: time.Now(), allowed: p.get(address)}
	late := lateError{address, c.allowed}
	dctx, cancel := context.WithTimeoutCause(ctx, c.allowed, late)
	defer cancel()
	conn, err := dial(dctx)
	if err != nil {
		if context.Cause(dctx) == late {
			p.grow(address, c.allowed)
			return nil, late
		}
		return nil, err
	}
	c.Conn = conn
	limitUnanswered(conn)
	c.timer = time.AfterFunc(c.allowed-time.Since(c.began), func() {
		c.late.Store(true)
		p.grow(address, c.allowed)
		_ = conn.Close() // it is of no use in any case
	})
	return c, nil
}

// limitUnanswered has the kernel end a connection whose peer has vanished. gRPC does that only to a connection that it sees itself.
func limitUnanswered(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { // else gRPC's own pings find out
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(keepAliveTimeout.Milliseconds()))
		})
	}
}

// lateError is that of a connection that did not come in time.
type lateError struct {
	address string
	allowed time.Duration
}

// Error implements error.
func (e lateError) Error() string {
	return fmt.Sprintf("%s has not answered within %s", e.address, e.allowed)
}

// Is makes it os.ErrDeadlineExceeded.
func (e lateError) Is(target error) bool { return target == os.ErrDeadlineExceeded }

// heard notes that the server has said something.
func (c *awaited) heard() {
	if c.timer.Stop() {
		c.of.answered(c.address, time.Since(c.began))
	}
}

// within returns the connection as it is used, such as with TLS: what the server says there counts.
func (c *awaited) within(conn net.Conn) net.Conn { return &spoken{Conn: conn, of: c} }

// spoken is a connection that notes what the server says.
type spoken struct {
	net.Conn
	of    *awaited
	heard sync.Once
}

// Read implements net.Conn.
func (s *spoken) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if n > 0 {
		s.heard.Do(s.of.heard)
	}
	return n, err
}

// Read implements net.Conn.
func (c *awaited) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, c.explain(err)
}

// Write implements net.Conn.
func (c *awaited) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	return n, c.explain(err)
}

func (c *awaited) explain(err error) error {
	if err != nil && c.late.Load() {
		return lateError{c.address, c.allowed}
	}
	return err
}

// Close implements net.Conn.
func (c *awaited) Close() error {
	c.timer.Stop()
	return c.Conn.Close()
}

func (p *patience) get(address string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(connectTimeout, p.allowed[address])
}

func (p *patience) grow(address string, was time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.allowed == nil {
		p.allowed = map[string]time.Duration{}
	}
	p.allowed[address] = min(2*was, maxConnectTimeout)
}

// answered notes how long a connection took: the next one may take as long again.
func (p *patience) answered(address string, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if took < connectTimeout {
		delete(p.allowed, address)
		delete(p.told, address)
		return
	}
	if p.told == nil {
		p.told = map[string]bool{}
	}
	if !p.told[address] {
		p.log.Warn("etcd is slow: changes come late, and calls may not be answered in time", "address", address, "connected_after", took.Round(time.Millisecond),
			"fix", "look for what delays packets on the way to it")
	}
	p.told[address] = true
}
