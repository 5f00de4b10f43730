//go:build kube

package kube_test

import (
	"io"
	"net"
	"sync"
	"testing"
)

// proxy forwards TCP connections to the API server and can cut them all.
type proxy struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex
	target string
	conns  map[net.Conn]struct{}
	refuse bool
}

func newProxy(tb testing.TB, target string) *proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &proxy{listener: l, target: target, conns: map[net.Conn]struct{}{}}
	p.wg.Go(p.accept)
	tb.Cleanup(func() {
		l.Close()
		p.cut(true)
		p.wg.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// point makes the connections from now on lead to target.
func (p *proxy) point(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// cut closes every connection, and later ones too if refuse is set.
func (p *proxy) cut(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
	for c := range p.conns {
		c.Close()
	}
}

func (p *proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		target := p.target
		p.mu.Unlock()
		server, err := net.Dial("tcp", target)
		if err != nil || !p.add(c, server) {
			c.Close()
			continue
		}
		p.wg.Go(func() { p.copy(c, server) })
		p.wg.Go(func() { p.copy(server, c) })
	}
}

func (p *proxy) add(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse {
		conns[1].Close()
		return false
	}
	for _, c := range conns {
		p.conns[c] = struct{}{}
	}
	return true
}

func (p *proxy) copy(to, from net.Conn) {
	io.Copy(to, from)
	to.Close()
	from.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, to)
	delete(p.conns, from)
}
