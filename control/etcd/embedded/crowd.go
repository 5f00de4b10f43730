package embedded

import (
	"crypto/x509"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
)

// crowd bounds the open connections. If there is no room, a new connection replaces one of the address that
// has most. So a host with a few connections keeps them, however many a stranger opens.
type crowd struct {
	max int
	// keeps decides if several addresses have most, as when a stranger has as many addresses as he likes. If it is true, the existing
	// connections stay, because they are in use; else the new one comes in, because the oldest one should be done by now.
	keeps bool
	// each is how many connections one address may have; 0: as many as there is room.
	each int
	// farewell is what a new connection is told that is refused; nil: nothing.
	farewell []byte

	mu       sync.Mutex
	count    int
	next     uint64                  // age of the next guest
	dropped  uint64                  // to make room
	bySource map[netip.Addr][]*guest // the oldest first
	closed   bool
}

func newCrowd(max int, keeps bool) *crowd {
	return &crowd{max: max, keeps: keeps, bySource: map[netip.Addr][]*guest{}}
}

// guest is a connection of a crowd.
type guest struct {
	net.Conn          // with TLS, if that is spoken
	raw      net.Conn // below it: to close it waits for nobody
	from     netip.Addr
	age      uint64 // the older, the smaller
	crowd    *crowd
	leaf     atomic.Pointer[x509.Certificate] // nil: it has shown none
}

// Close closes the connection and leaves the crowd.
func (g *guest) Close() error {
	g.crowd.forget(g)
	return g.raw.Close()
}

// admit returns a connection as it is to be used; nil if there is no room, and it was closed. dropped tells that a
// connection was closed, this one or another.
func (c *crowd) admit(conn net.Conn) (g *guest, dropped bool) {
	g = &guest{Conn: conn, raw: conn, from: sourceOf(conn), crowd: c}
	c.mu.Lock()
	victim := c.victim(g)
	if victim != nil {
		c.dropped++
	}
	if victim != g {
		g.age = c.next
		c.next++
		c.bySource[g.from] = append(c.bySource[g.from], g)
		c.count++
	}
	c.mu.Unlock()
	if victim == g && c.farewell != nil {
		_, _ = conn.Write(c.farewell) // the kernel has room for it
	}
	if victim != nil {
		_ = victim.Close() // an error would be about a connection that is dead
	}
	if victim == g {
		return nil, true
	}
	return g, victim != nil
}

// victim returns the connection that makes room for g, nil if there is room. The caller holds mu.
func (c *crowd) victim(g *guest) *guest {
	if c.closed {
		return g
	}
	if c.each > 0 && len(c.bySource[g.from]) >= c.each {
		return g
	}
	if c.count < c.max {
		return nil
	}
	var most []*guest
	for _, all := range c.bySource {
		if len(all) > len(most) || len(all) == len(most) && all[0].age < most[0].age {
			most = all
		}
	}
	own := c.bySource[g.from]
	switch {
	case c.keeps && len(own)+1 >= len(most):
		return g
	case len(own)+1 > len(most):
		return own[0]
	}
	return most[0]
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
