package etcdrpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/overlayd/overlayd/control/conns"
)

// connTracker knows every connection of a Client, so that those which cannot work any more can be
// closed. It sits at the TLS handshake, where gRPC shows each connection.
type connTracker struct {
	credentials.TransportCredentials
	files *certFiles // nil: the credentials are all there is
	log   *slog.Logger

	endpoints *endpoints // of the Client
	patience  patience

	conns conns.Set[fileSum] // with the files by which each was made
	mu    sync.Mutex
	last  time.Time // when the newest was made

	crowded atomic.Pointer[netip.AddrPort] // the embedded etcd that has refused a connection as crowded, since the last dial
}

// firstWord is a connection that tells if the other end refuses it as crowded.
type firstWord struct {
	net.Conn
	refused func()
	heard   atomic.Bool
}

// Read implements net.Conn.
func (c *firstWord) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.heard.Swap(true) && bytes.Contains(b[:n], []byte(conns.Crowded)) {
		c.refused()
	}
	return n, err
}

// newConnTracker returns one with the credentials that clientv3 would choose: by the scheme of the first endpoint.
func newConnTracker(endpoint string, files *certFiles, log *slog.Logger) *connTracker {
	t := &connTracker{TransportCredentials: insecure.NewCredentials(), log: log}
	if encrypts(endpoint, files != nil) {
		t.TransportCredentials, t.files = credentials.NewTLS(files.tls()), files
	}
	return t
}

// ClientHandshake implements credentials.TransportCredentials.
func (t *connTracker) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	with, sum := t.TransportCredentials, fileSum{}
	if t.files != nil {
		files := t.files.current(t.log)
		with, sum = credentials.NewTLS(files.tls), files.sum
		if files.tls.ServerName != "" {
			authority = files.tls.ServerName // gRPC checks this one, which is else the host of the endpoint
		}
	}
	awaited, isAwaited := c.(*awaited)
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		at := tcp.AddrPort()
		c = &firstWord{Conn: c, refused: func() { t.crowded.Store(&at) }}
	}
	conn := t.conns.Add(c, sum)
	t.mu.Lock()
	t.last = time.Now()
	t.mu.Unlock()
	secured, info, err := with.ClientHandshake(ctx, authority, conn)
	switch {
	case err != nil:
		conn.Leave()
	case info.AuthType() == "tls":
		secured = &unanswered{Conn: secured}
	}
	if err == nil && isAwaited {
		secured = awaited.within(secured)
	}
	return secured, info, err
}

// unanswered is a connection over which the server has said nothing yet. With TLS 1.3 a client takes the handshake for done before
// the server has looked at the certificate of the client. The end of the connection may then come without the alert that tells why.
type unanswered struct {
	net.Conn
	heard atomic.Bool
}

// rejected is the part of an error by which refusedTLS knows it: gRPC hands on the text alone.
const rejected = "the server has ended the connection right after the TLS handshake, as one does that wants another certificate"

// Read implements net.Conn.
func (c *unanswered) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.heard.Store(true)
	}
	return n, c.explain(err)
}

// Write implements net.Conn.
func (c *unanswered) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	return n, c.explain(err)
}

// explain says so of an error that the other end has caused before it said a word.
func (c *unanswered) explain(err error) error {
	if err == nil || c.heard.Load() || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%s: %w", rejected, err)
}

// Clone implements credentials.TransportCredentials. A copy would not see the connections.
func (t *connTracker) Clone() credentials.TransportCredentials { return t }

// newest returns when the newest connection was made.
func (t *connTracker) newest() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// closeStale closes the connections whose local address this host no longer has.
func (t *connTracker) closeStale(log *slog.Logger) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		log.Warn("connections to etcd are kept: cannot list the addresses of this host", "err", err)
		return
	}
	stale := func(c net.Conn, _ fileSum) bool { return isStale(c.LocalAddr(), addrs) }
	t.conns.CloseIf(stale, func(c net.Conn) {
		log.Info("connection to etcd closed: its address is gone", "local", c.LocalAddr())
	})
}

// closeOthers closes the connections that were made with other certificate files than those with this sum, and returns how
// many there were.
func (t *connTracker) closeOthers(sum fileSum) int {
	other := func(_ net.Conn, made fileSum) bool { return made != sum }
	return t.conns.CloseIf(other, func(net.Conn) {})
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
