package etcd_test

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
)

// TestLeaderKilled has three members, each a real server, and kills the leader.
func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	members, endpoints := newMembers(t)
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	c := &cluster{client: client, cfg: etcd.Config{Endpoints: endpoints, Prefix: prefix}}
	c.SetConfig(t, []byte(config))
	s := c.open(t)
	l := acquire(t, s, 1)
	updates := watch(t, s)
	tb := table{}
	follow(t, c, updates, tb)

	var rest []string
	for i, m := range members {
		if m.Server.Leader() == m.Server.MemberID() {
			m.Server.HardStop()
			continue
		}
		rest = append(rest, endpoints[i])
	}
	if len(rest) != 2 {
		t.Fatalf("%d members are not the leader", len(rest))
	}
	client.SetEndpoints(rest...)
	eventually(t, "a put after the election", func() bool {
		_, err := client.Put(t.Context(), prefix+"/subnets/"+key(2), string(value(2)))
		return err == nil
	})
	begin := time.Now()
	follow(t, c, updates, tb)
	t.Logf("followed %s after the election", time.Since(begin))
	eventually(t, "a renewal", func() bool {
		var renewed control.Lease
		if renewed, err = s.Renew(t.Context(), l); err == nil {
			l = renewed
		}
		return err == nil
	})
	if e := c.entry(t, l.Key()); e.revision != l.CreateRevision {
		t.Error("the renewal wrote the entry again")
	}
}

// newMembers starts a cluster of three. They end after the Stores that tb opens later.
func newMembers(tb testing.TB) (members []*embed.Etcd, endpoints []string) {
	tb.Helper()
	peers, clients := freeURLs(tb, 3), freeURLs(tb, 3)
	var initial []string
	for i, p := range peers {
		initial = append(initial, fmt.Sprintf("m%d=%s", i, p.String()))
		endpoints = append(endpoints, clients[i].String())
	}
	dir := tb.TempDir()
	for i := range 3 {
		cfg := embed.NewConfig()
		cfg.Name = fmt.Sprintf("m%d", i)
		cfg.Dir = filepath.Join(dir, cfg.Name)
		cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = peers[i:i+1], peers[i:i+1]
		cfg.ListenClientUrls, cfg.AdvertiseClientUrls = clients[i:i+1], clients[i:i+1]
		cfg.InitialCluster = strings.Join(initial, ",")
		cfg.TickMs, cfg.ElectionMs = 50, 500
		cfg.UnsafeNoFsync = true
		cfg.EnableGRPCGateway = false
		cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
		e, err := embed.StartEtcd(cfg)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(e.Close)
		members = append(members, e)
	}
	for _, m := range members {
		<-m.Server.ReadyNotify()
	}
	return members, endpoints
}

// freeURLs returns loopback URLs whose ports were free a moment ago.
func freeURLs(tb testing.TB, n int) (urls []url.URL) {
	tb.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		defer l.Close()
		urls = append(urls, url.URL{Scheme: "http", Host: l.Addr().String()})
	}
	return urls
}
