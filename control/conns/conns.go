// Package conns knows the open connections of a store's client or server, so that their remote ends can be listed, and those
// that cannot work any more closed. It makes those of a client, also if every port of the host is taken.
package conns

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// Set holds connections until they are closed, each with a note of whoever added it. The zero value is an empty set. Its
// methods may be called from several goroutines.
type Set[Note any] struct {
	mu   sync.Mutex
	open map[*Conn[Note]]Note
}

// Conn is a connection that leaves its set when it is closed.
type Conn[Note any] struct {
	net.Conn
	set *Set[Note]
}

// Add adds a connection. From then on the one that it returns is to be used in its place.
func (s *Set[Note]) Add(c net.Conn, note Note) *Conn[Note] {
	conn := &Conn[Note]{c, s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[*Conn[Note]]Note{}
	}
	s.open[conn] = note
	return conn
}

// Leave takes the connection out of its set, and leaves it open.
func (c *Conn[Note]) Leave() {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	delete(c.set.open, c)
}

// Close closes the connection.
func (c *Conn[Note]) Close() error {
	c.Leave()
	return c.Conn.Close()
}

// Len returns how many connections are open.
func (s *Set[Note]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// Remotes returns the addresses of the other ends of the connections by TCP, sorted, each once.
func (s *Set[Note]) Remotes() (all []netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
			all = append(all, tcp.AddrPort().Addr().Unmap().WithZone(""))
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// CloseIf closes the connections for which is reports true, after it has told about each, and returns how many there were.
func (s *Set[Note]) CloseIf(is func(net.Conn, Note) bool, tell func(net.Conn)) int {
	s.mu.Lock()
	var gone []*Conn[Note]
	for c, note := range s.open {
		if is(c, note) {
			gone = append(gone, c)
		}
	}
	s.mu.Unlock()
	for _, c := range gone {
		tell(c)
		_ = c.Close() // an error would be about a connection that is dead
	}
	return len(gone)
}
