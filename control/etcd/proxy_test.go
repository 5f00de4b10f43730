package etcd_test

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// proxy forwards TCP connections to a unix socket, or to a host and port, and can misbehave.
type proxy struct {
	listener net.Listener
	wg       sync.WaitGroup

	accepted atomic.Int64 // connections so far
	hole     atomic.Bool  // connections that are accepted from now on are black holes
	delay    atomic.Int64 // each way of connections that are accepted from now on, in nanoseconds
	pace     atomic.Int64 // time that a byte of an answer takes, in nanoseconds

	mu     sync.Mutex
	target string // "": nobody answers
	pairs  map[*pair]struct{}
	closed bool
	trap   *trap
}

// pair is one forwarded connection.
type pair struct {
	client, server net.Conn
	frozen         atomic.Bool // nothing is forwarded any more, and nobody told
}

func (p *pair) close() {
	p.client.Close()
	p.server.Close()
}

// trap waits for a request that contains marker. The request's connection is then
// handed over: sprung gets it before the request is forwarded.
type trap struct {
	marker []byte
	sprung func(p *pair, request []byte)
}

func newProxy(tb testing.TB, target string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return serveProxy(tb, l, target)
}

func serveProxy(tb testing.TB, l net.Listener, target string) *proxy {
	p := &proxy{listener: l, target: target, pairs: map[*pair]struct{}{}}
	p.wg.Go(p.accept)
	tb.Cleanup(p.close)
	return p
}

// dial connects to the target, which it returns.
func (p *proxy) dial() (net.Conn, string, error) {
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	network := "unix"
	if strings.Contains(target, ":") {
		network = "tcp"
	}
	c, err := net.Dial(network, target)
	return c, target, err
}

// turn leads to another target from now on.
func (p *proxy) turn(target string) {
	p.mu.Lock()
	p.target = target
	p.mu.Unlock()
	p.cut()
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

func (p *proxy) close() {
	p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cut()
	p.wg.Wait()
}

// freeze makes every connection of now a black hole.
func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for pair := range p.pairs {
		pair.frozen.Store(true)
	}
}

// cut closes every connection.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for pair := range p.pairs {
		pair.close()
	}
}

func (p *proxy) setTrap(marker string, sprung func(*pair, []byte)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trap = &trap{marker: []byte(marker), sprung: sprung}
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.accepted.Add(1)
		server, target, err := p.dial()
		if err != nil {
			client.Close()
			continue
		}
		pair := &pair{client: client, server: server}
		pair.frozen.Store(p.hole.Load())
		p.mu.Lock()
		p.pairs[pair] = struct{}{}
		late := p.closed || p.target != target
		p.mu.Unlock()
		if late {
			pair.close()
		}
		p.wg.Go(func() { p.forward(pair, p.late(server), client, true) })
		p.wg.Go(func() { p.forward(pair, p.late(client), server, false) })
	}
}

// late returns a writer to a connection that has the proxy's delay.
func (p *proxy) late(to net.Conn) io.WriteCloser {
	delay := time.Duration(p.delay.Load())
	if delay == 0 {
		return to
	}
	l := &late{to: to, delay: delay, queue: make(chan chunk, 1<<12)}
	p.wg.Go(l.run)
	return l
}

// late hands on what it is given after a delay, in order. One goroutine may write to it, and close it.
type late struct {
	to    net.Conn
	delay time.Duration
	queue chan chunk
}

// chunk is what was written at once, and when it is due.
type chunk struct {
	data []byte
	due  time.Time
}

func (l *late) run() {
	for c := range l.queue {
		time.Sleep(time.Until(c.due)) // the delay
		_, _ = l.to.Write(c.data)     // of a connection that has ended it is lost
	}
}

// Write implements io.Writer.
func (l *late) Write(b []byte) (int, error) {
	l.queue <- chunk{bytes.Clone(b), time.Now().Add(l.delay)}
	return len(b), nil
}

// Close implements io.Closer.
func (l *late) Close() error {
	close(l.queue)
	return nil
}

func (p *proxy) forward(pair *pair, to io.WriteCloser, from net.Conn, requests bool) {
	defer func() {
		to.Close()
		pair.close()
		p.mu.Lock()
		delete(p.pairs, pair)
		p.mu.Unlock()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if pair.frozen.Load() {
			continue
		}
		if t := p.match(requests, buf[:n]); t != nil {
			t.sprung(pair, buf[:n])
			return
		}
		if !requests {
			time.Sleep(time.Duration(p.pace.Load() * int64(n)))
		}
		if _, err := to.Write(buf[:n]); err != nil && requests {
			return // replies to a client that has gone are dropped: its requests may still be coming
		}
	}
}

// match returns the trap, once, if chunk springs it.
func (p *proxy) match(request bool, chunk []byte) *trap {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !request || p.trap == nil || !bytes.Contains(chunk, p.trap.marker) {
		return nil
	}
	t := p.trap
	p.trap = nil
	return t
}
