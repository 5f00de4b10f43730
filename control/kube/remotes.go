package kube

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
)

// remotes knows the connections to the API server.
type remotes struct {
	mu    sync.Mutex
	conns map[*remoteConn]struct{}
}

// dial wraps a dialer, so that its connections are known.
func (r *remotes) dial(dial func(ctx context.Context, network, addr string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		conn := &remoteConn{c, r}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.conns == nil {
			r.conns = map[*remoteConn]struct{}{}
		}
		r.conns[conn] = struct{}{}
		return conn, nil
	}
}

// remoteConn is forgotten when it is closed.
type remoteConn struct {
	net.Conn
	of *remotes
}

// Close closes the connection and forgets it.
func (c *remoteConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// Remotes implements control.RemoteLister.
func (s *Store) Remotes() (all []netip.Addr) {
	s.remotes.mu.Lock()
	defer s.remotes.mu.Unlock()
	for c := range s.remotes.conns {
		if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
			all = append(all, tcp.AddrPort().Addr().Unmap().WithZone(""))
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}
