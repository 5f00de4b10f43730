package etcd_test

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/overlayd/overlayd/control"
)

// proxied starts what `etcd grpc-proxy` is, through which the Stores that the cluster opens from now on go.
func proxied(t *testing.T, c *cluster) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{c.url()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	kv, kvEnds := grpcproxy.NewKvProxy(client)
	watch, watchEnds := grpcproxy.NewWatchProxy(ctx, zap.NewNop(), client)
	lease, leaseEnds := grpcproxy.NewLeaseProxy(ctx, client)
	s := grpc.NewServer()
	pb.RegisterKVServer(s, kv)
	pb.RegisterWatchServer(s, watch)
	pb.RegisterLeaseServer(s, lease)
	pb.RegisterMaintenanceServer(s, grpcproxy.NewMaintenanceProxy(client))
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		cancel()
		s.Stop()
		<-done
		for _, ends := range []<-chan struct{}{kvEnds, watchEnds, leaseEnds} {
			<-ends
		}
		client.Close()
	})
	c.cfg.Endpoints = []string{"http://" + l.Addr().String()}
}

// TestBehindGRPCProxy: the proxy lets several watches of the same keys share one, and tells the later ones neither cluster nor
// revision. They follow all the same, and what is deleted is written again at once.
func TestBehindGRPCProxy(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	proxied(t, c)
	var log syncBuffer
	c.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	own := c.open(t)
	l := acquire(t, own, 1)
	var watches []<-chan control.Update
	for _, s := range []control.Store{c.open(t), own, c.open(t)} { // own has written at a later revision than others
		updates := s.Watch(t.Context())
		t.Cleanup(func() {
			for range updates {
			}
		})
		if u := receive(t, updates); !u.Reset || len(u.Leases) != 1 {
			t.Fatalf("update %+v, want a list of one lease", u)
		}
		watches = append(watches, updates)
	}
	for range 3 {
		c.DeleteRaw(t, l.Key())
		for _, updates := range watches {
			if u := receive(t, updates); u.Reset || len(u.Deleted) != 1 {
				t.Fatalf("update %+v, want a deletion; log:\n%s", u, log.String())
			}
		}
		l = renew(t, own, l)
		for _, updates := range watches {
			if u := receive(t, updates); u.Reset || len(u.Leases) != 1 {
				t.Fatalf("update %+v, want the lease; log:\n%s", u, log.String())
			}
		}
	}
	if strings.Contains(log.String(), "interrupted") || strings.Contains(log.String(), "replaced") {
		t.Errorf("log:\n%s", log.String())
	}
}
