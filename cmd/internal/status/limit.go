package status

import (
	"net"
	"slices"
	"sync"
)

// limited admits at most maxConns connections. Who comes then takes the place of the oldest one: an answer takes
// milliseconds, so that is most likely one of a client that holds it for nothing.
type limited struct {
	net.Listener

	mu   sync.Mutex
	open []*limitedConn // the oldest first
}

func newLimited(l net.Listener) *limited { return &limited{Listener: l} }

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &limitedConn{conn, l}
	if oldest := l.add(c); oldest != nil {
		oldest.Close()
	}
	return c, nil
}

func (l *limited) add(c *limitedConn) (oldest *limitedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= maxConns {
		oldest = l.open[0]
	}
	l.open = append(l.open, c)
	return oldest
}

type limitedConn struct {
	net.Conn
	in *limited
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.in.mu.Lock()
	if i := slices.Index(c.in.open, c); i >= 0 {
		c.in.open = slices.Delete(c.in.open, i, i+1)
	}
	c.in.mu.Unlock()
	return c.Conn.Close()
}
