package kube

import (
	"context"
	"net"
	"net/netip"

	"github.com/overlayd/overlayd/control/conns"
)

// remotes are the connections to the API server.
type remotes struct{ conns.Set[struct{}] }

// dial wraps a dialer, so that its connections are known.
func (r *remotes) dial(dial func(ctx context.Context, network, addr string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return r.Add(c, struct{}{}), nil
	}
}

// Remotes implements control.RemoteLister.
func (s *Store) Remotes() []netip.Addr { return s.remotes.Remotes() }
