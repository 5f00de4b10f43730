package embedded

import (
	"errors"
	"net"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/overlayd/overlayd/control/conns"
)

// connTracker knows every client connection, so that all of them can be closed
// at once. It sits where gRPC would do the TLS handshake, the one place that
// sees the connections of a server which somebody else makes.
type connTracker struct {
	credentials.TransportCredentials // plain text

	conns  conns.Set[struct{}]
	closed atomic.Bool
}

func newConnTracker() *connTracker {
	return &connTracker{TransportCredentials: insecure.NewCredentials()}
}

var errStopping = errors.New("server is stopping")

// ServerHandshake implements credentials.TransportCredentials.
func (t *connTracker) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	tracked := t.conns.Add(c, struct{}{})
	if t.closed.Load() { // after Add: closeAll sees the connection, or this sees closeAll
		return nil, nil, errors.Join(errStopping, tracked.Close())
	}
	return t.TransportCredentials.ServerHandshake(tracked)
}

// Clone implements credentials.TransportCredentials. There is one tracker per
// server: a copy would not see the connections.
func (t *connTracker) Clone() credentials.TransportCredentials { return t }

// closeAll closes every connection and refuses new ones.
func (t *connTracker) closeAll() {
	t.closed.Store(true)
	t.conns.CloseIf(func(net.Conn, struct{}) bool { return true }, func(net.Conn) {})
}
