package etcdrpc

import (
	"context"
	"net"
	"strings"

	"google.golang.org/grpc"

	"github.com/overlayd/overlayd/control/conns"
)

// dialOptions makes gRPC dial by a conns.Dialer, through the proxy that the environment names, if any.
// If an embedded etcd has refused the last connection, other users of this host have all that it takes from one address.
func (c Config) dialOptions(tracked *connTracker) []grpc.DialOption {
	d := &conns.Dialer{Log: c.Log}
	return []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		if by := tracked.crowded.Swap(nil); by != nil {
			d.MakeRoom(ctx, *by)
		}
		return tracked.patience.dial(ctx, address, func(ctx context.Context) (net.Conn, error) {
			if path, ok := strings.CutPrefix(address, "unix:"); ok {
				return d.Dialer.DialContext(ctx, "unix", strings.TrimPrefix(path, "//"))
			}
			return d.DialByProxy(ctx, address)
		})
	})}
}
