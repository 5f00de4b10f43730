package embedded

import (
	"errors"
	"net"
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
}

func newConnTracker() *connTracker {
	return &connTracker{TransportCredentials: insecure.NewCredentials(), conns: map[net.Conn]struct{}{}}
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

// closeOf closes the connection of the client at an address and port.
func (t *connTracker) closeOf(address string) {
	t.mu.Lock()
	var found net.Conn
	for c := range t.conns {
		if c.RemoteAddr().String() == address {
			found = c
		}
	}
	t.mu.Unlock()
	if found != nil {
		_ = found.Close() // its error would help nobody
	}
}

// trackedConn leaves the tracker when it is closed.
type trackedConn struct {
	net.Conn
	tracker *connTracker
}

// Close closes the connection and forgets it.
func (c *trackedConn) Close() error {
	c.tracker.mu.Lock()
	delete(c.tracker.conns, c)
	c.tracker.mu.Unlock()
	return c.Conn.Close()
}
