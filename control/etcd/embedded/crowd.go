package embedded

import (
	"crypto/x509"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
)

// crowd bounds the open connections. If there is no room for another one, it takes the place of one of the source that
// has most: a host with a few connections keeps them however many a stranger opens.
type crowd struct {
	max int

	mu       sync.Mutex
	count    int
	bySource map[netip.Addr][]*guest // the oldest first
	closed   bool
}

func newCrowd(max int) *crowd { return &crowd{max: max, bySource: map[netip.Addr][]*guest{}} }

// guest is a connection of a crowd.
type guest struct {
	net.Conn          // with TLS, if that is spoken
	raw      net.Conn // below it: to close it waits for nobody
	from     netip.Addr
	crowd    *crowd
	leaf     atomic.Pointer[x509.Certificate] // nil: it has shown none
}

// Close closes the connection and leaves the crowd.
func (g *guest) Close() error {
	g.crowd.forget(g)
	return g.raw.Close()
}

// admit returns a connection as it is to be used; nil if there is no room, and it was closed.
func (c *crowd) admit(conn net.Conn) *guest {
	g := &guest{Conn: conn, raw: conn, from: sourceOf(conn), crowd: c}
	c.mu.Lock()
	victim := c.victim(g)
	if victim != g {
		c.bySource[g.from] = append(c.bySource[g.from], g)
		c.count++
	}
	c.mu.Unlock()
	if victim != nil {
		_ = victim.Close() // an error would be about a connection that is dead
	}
	if victim == g {
		return nil
	}
	return g
}

// victim returns the connection that makes room for g, nil if there is room: the oldest of the source that has most,
// or g itself if it is of that source. The caller holds mu.
func (c *crowd) victim(g *guest) *guest {
	if c.closed {
		return g
	}
	if c.count < c.max {
		return nil
	}
	most, n := g.from, len(c.bySource[g.from])+1
	for from, all := range c.bySource {
		if len(all) > n {
			most, n = from, len(all)
		}
	}
	if most == g.from {
		return g
	}
	return c.bySource[most][0]
}

// forget drops a connection that somebody else has, or that is closed.
func (c *crowd) forget(g *guest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.bySource[g.from]
	i := slices.Index(all, g)
	if i < 0 {
		return
	}
	c.count--
	if c.bySource[g.from] = slices.Delete(all, i, i+1); len(all) == 1 {
		delete(c.bySource, g.from)
	}
}

// all returns the connections.
func (c *crowd) all() (all []*guest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range c.bySource {
		all = append(all, of...)
	}
	return all
}

// close closes the connections, and admits no more.
func (c *crowd) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	for _, g := range c.all() {
		_ = g.Close()
	}
}
