package etcdrpc

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/grpc"

	"github.com/overlayd/overlayd/control/conns"
)

// dialOptions makes gRPC dial by a conns.Dialer. Through a proxy that the environment names, gRPC's own dialer alone leads.
func (c Config) dialOptions() []grpc.DialOption {
	if slices.ContainsFunc(c.Endpoints, proxied) {
		return nil
	}
	d := &conns.Dialer{Log: c.Log}
	return []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		if path, ok := strings.CutPrefix(address, "unix:"); ok {
			return d.Dialer.DialContext(ctx, "unix", strings.TrimPrefix(path, "//"))
		}
		return d.DialContext(ctx, "tcp", address)
	})}
}

// proxied reports whether gRPC reaches an endpoint through a proxy.
func proxied(endpoint string) bool {
	u, err := parseEndpoint(endpoint)
	if err != nil || u.Scheme == "unix" {
		return false
	}
	proxy, err := http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: "https", Host: u.Host}}) // as gRPC asks for it
	return proxy != nil || err != nil
}
