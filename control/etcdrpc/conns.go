package etcdrpc

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// connTracker knows every connection of a Client, so that those which cannot work any more can be
// closed. It sits at the TLS handshake, where gRPC shows each connection.
type connTracker struct {
	credentials.TransportCredentials
	files *certFiles // nil: the credentials are all there is
	log   *slog.Logger

	mu    sync.Mutex
	conns map[net.Conn]fileSum // by what each was made
	last  time.Time            // when the newest was made
}

// newConnTracker returns one with the credentials that clientv3 would choose: by the scheme of the first endpoint.
func newConnTracker(endpoint string, files *certFiles, log *slog.Logger) *connTracker {
	t := &connTracker{TransportCredentials: insecure.NewCredentials(), log: log, conns: map[net.Conn]fileSum{}}
	if encrypts(endpoint, files != nil) {
		t.TransportCredentials, t.files = credentials.NewTLS(files.tls()), files
	}
	return t
}

// ClientHandshake implements credentials.TransportCredentials.
func (t *connTracker) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, with, sum := &trackedConn{Conn: c, tracker: t}, t.TransportCredentials, fileSum{}
	if t.files != nil {
		now := t.files.current(t.log)
		with, sum = credentials.NewTLS(now.tls), now.sum
	}
	t.mu.Lock()
	t.conns[conn], t.last = sum, time.Now()
	t.mu.Unlock()
	secured, info, err := with.ClientHandshake(ctx, authority, conn)
	if err != nil {
		t.forget(conn)
	}
	return secured, info, err
}

// Clone implements credentials.TransportCredentials. A copy would not see the connections.
func (t *connTracker) Clone() credentials.TransportCredentials { return t }

// newest returns when the newest connection was made.
func (t *connTracker) newest() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

func (t *connTracker) forget(c net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
}

// remotes returns the addresses of the other ends, sorted.
func (t *connTracker) remotes() (all []netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns {
		if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
			all = append(all, tcp.AddrPort().Addr().Unmap().WithZone(""))
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// closeStale closes the connections whose local address this host no longer has.
func (t *connTracker) closeStale(log *slog.Logger) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		log.Warn("connections to etcd are kept: cannot list the addresses of this host", "err", err)
		return
	}
	stale := func(c net.Conn, _ fileSum) bool { return isStale(c.LocalAddr(), addrs) }
	t.closeWhere(stale, func(c net.Conn) {
		log.Info("connection to etcd closed: its address is gone", "local", c.LocalAddr())
	})
}

// closeOthers closes the connections that were made with other certificate files than those with this sum, and returns how
// many there were.
func (t *connTracker) closeOthers(sum fileSum) int {
	other := func(_ net.Conn, made fileSum) bool { return made != sum }
	return t.closeWhere(other, func(net.Conn) {})
}

// closeWhere closes the connections for which is reports true, after it has told about each.
func (t *connTracker) closeWhere(is func(net.Conn, fileSum) bool, tell func(net.Conn)) int {
	t.mu.Lock()
	var gone []net.Conn
	for c, sum := range t.conns {
		if is(c, sum) {
			gone = append(gone, c)
		}
	}
	t.mu.Unlock()
	for _, c := range gone {
		tell(c)
		_ = c.Close() // an error would be about a connection that is dead
	}
	return len(gone)
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
