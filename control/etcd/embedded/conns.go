package embedded

import (
	"errors"
	"net"
	"net/netip"
	"sync"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// connTracker knows every client connection, so that all of them can be closed
// at once. It sits where gRPC would do the TLS handshake, the one place that
// sees the connections of a server which somebody else makes.
type connTracker struct {
	credentials.TransportCredentials // plain text

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool

	byAddress map[string]*trackedConn // of TCP

	ended func(*trackedConn) // called when a connection has; nil: nobody wants to know
}

func newConnTracker() *connTracker {
	return &connTracker{TransportCredentials: insecure.NewCredentials(), conns: map[net.Conn]struct{}{}, byAddress: map[string]*trackedConn{}}
}

var errStopping = errors.New("server is stopping")

// ServerHandshake implements credentials.TransportCredentials.
func (t *connTracker) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, nil, errors.Join(errStopping, c.Close())
	}
	tracked := &trackedConn{Conn: c, tracker: t}
	t.conns[tracked] = struct{}{}
	if addr, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		tracked.address, tracked.from = addr.String(), sourceOf(c)
		t.byAddress[tracked.address] = tracked
	}
	return t.TransportCredentials.ServerHandshake(tracked)
}

// Clone implements credentials.TransportCredentials. There is one tracker per
// server: a copy would not see the connections.
func (t *connTracker) Clone() credentials.TransportCredentials { return t }

// closeAll closes every connection and refuses new ones.
func (t *connTracker) closeAll() {
	t.mu.Lock()
	t.closed = true
	conns := t.conns
	t.conns = map[net.Conn]struct{}{}
	t.mu.Unlock()
	for c := range conns {
		_ = c.Close() // its error would help nobody
	}
}

// find returns the connection of the client at address, which has a port too, or nil if that client has no connection.
func (t *connTracker) find(address string) *trackedConn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byAddress[address]
}

// trackedConn leaves the tracker when it is closed.
type trackedConn struct {
	net.Conn
	tracker *connTracker
	address string // of the client; "": not by TCP
	from    netip.Addr
	gone    bool // it is closed; of sources
	unsent  unsent
}

// Write implements net.Conn.
func (c *trackedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.unsent.wrote(b[:n])
	return n, err
}

// Close closes the connection and forgets it.
func (c *trackedConn) Close() error {
	c.tracker.mu.Lock()
	delete(c.tracker.conns, c)
	if c.tracker.byAddress[c.address] == c {
		delete(c.tracker.byAddress, c.address)
	}
	c.tracker.mu.Unlock()
	c.unsent.close()
	if c.tracker.ended != nil {
		c.tracker.ended(c)
	}
	return c.Conn.Close()
}
