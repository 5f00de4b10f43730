package etcdrpc

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// connTracker knows every connection of a Client, so that those which cannot work any more can be
// closed. It sits at the TLS handshake, where gRPC shows each connection.
type connTracker struct {
	credentials.TransportCredentials

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func newConnTracker(c credentials.TransportCredentials) *connTracker {
	return &connTracker{TransportCredentials: c, conns: map[net.Conn]struct{}{}}
}

// credentialsFor returns what clientv3 would choose: by the scheme of the first endpoint.
func credentialsFor(endpoint string, t *tls.Config) credentials.TransportCredentials {
	if encrypts(endpoint, t != nil) {
		return credentials.NewTLS(t)
	}
	return insecure.NewCredentials()
}

// ClientHandshake implements credentials.TransportCredentials.
func (t *connTracker) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	tracked := &trackedConn{Conn: c, tracker: t}
	t.mu.Lock()
	t.conns[tracked] = struct{}{}
	t.mu.Unlock()
	secured, info, err := t.TransportCredentials.ClientHandshake(ctx, authority, tracked)
	if err != nil {
		t.forget(tracked)
	}
	return secured, info, err
}

// Clone implements credentials.TransportCredentials. A copy would not see the connections.
func (t *connTracker) Clone() credentials.TransportCredentials { return t }

func (t *connTracker) forget(c net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
}

// closeStale closes the connections whose local address this host no longer has.
func (t *connTracker) closeStale(log *slog.Logger) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		log.Warn("connections to etcd are kept: cannot list the addresses of this host", "err", err)
		return
	}
	t.mu.Lock()
	var gone []net.Conn
	for c := range t.conns {
		if isStale(c.LocalAddr(), addrs) {
			gone = append(gone, c)
		}
	}
	t.mu.Unlock()
	for _, c := range gone {
		log.Info("connection to etcd closed: its address is gone", "local", c.LocalAddr())
		_ = c.Close() // an error would be about a connection that is dead
	}
}

// isStale reports whether local is a TCP address that is not one of addrs.
func isStale(local net.Addr, addrs []net.Addr) bool {
	tcp, ok := local.(*net.TCPAddr)
	if !ok {
		return false
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && (p.Addr() == ip || ip.IsLoopback() && p.Addr().IsLoopback() && p.Contains(ip)) {
			return false
		}
	}
	return true
}

// trackedConn leaves the tracker when it is closed.
type trackedConn struct {
	net.Conn
	tracker *connTracker
}

// Close closes the connection and forgets it.
func (c *trackedConn) Close() error {
	c.tracker.forget(c)
	return c.Conn.Close()
}
