package main

import (
	"bytes"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// relay hands TCP connections on, with a delay each way, or slowly.
type relay struct {
	delay atomic.Int64 // in nanoseconds
	rate  atomic.Int64 // in bytes per second; 0: as fast as it can
	ns    *netnstest.NS
	to    netip.AddrPort
	ends  sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn // nil: it has ended
}

// newRelay listens in a namespace, until the test ends.
func newRelay(t *testing.T, ns *netnstest.NS, at, to netip.AddrPort) *relay {
	t.Helper()
	r := &relay{ns: ns, to: to, conns: []net.Conn{}}
	var l net.Listener
	ns.Must(func() (err error) { l, err = net.Listen("tcp", at.String()); return err })
	r.ends.Go(func() { r.accept(l) })
	t.Cleanup(func() {
		l.Close()
		r.mu.Lock()
		for _, c := range r.conns {
			c.Close()
		}
		r.conns = nil
		r.mu.Unlock()
		r.ends.Wait()
	})
	return r
}

func (r *relay) accept(l net.Listener) {
	for {
		from, err := l.Accept()
		if err != nil {
			return
		}
		var to net.Conn
		err = r.ns.Do(func() (err error) { to, err = net.DialTimeout("tcp", r.to.String(), time.Second); return err })
		if err != nil || !r.keep(from, to) {
			from.Close()
			continue
		}
		r.ends.Go(func() { r.copy(to, from) })
		r.ends.Go(func() { r.copy(from, to) })
	}
}

// keep has connections closed at the end. It reports whether that is still to come.
func (r *relay) keep(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conns != nil {
		r.conns = append(r.conns, conns...)
		return true
	}
	for _, c := range conns {
		c.Close()
	}
	return false
}

// copy hands on what comes, after the delay.
func (r *relay) copy(to, from net.Conn) {
	type chunk struct {
		data []byte
		due  time.Time
	}
	queue := make(chan chunk, 1<<12)
	r.ends.Go(func() {
		for c := range queue {
			time.Sleep(time.Until(c.due)) // the delay
			_, _ = to.Write(c.data)       // what a closed connection gets is lost
			if rate := r.rate.Load(); rate > 0 {
				time.Sleep(time.Duration(len(c.data)) * time.Second / time.Duration(rate))
			}
		}
		to.Close()
	})
	defer close(queue)
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		queue <- chunk{bytes.Clone(buf[:n]), time.Now().Add(time.Duration(r.delay.Load()))}
	}
}
