package etcd_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
)

func openClient(t *testing.T, cfg etcd.Config) *etcd.Client {
	t.Helper()
	c, err := etcd.OpenClient(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// TestProxy: etcd is reached through the proxy of the environment, which alone knows its name.
func TestProxy(t *testing.T) {
	c := newCluster(t)
	var asked atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.Host != "etcd.invalid:2379" {
			t.Errorf("%s %s", r.Method, r.Host)
		}
		asked.Add(1)
		client, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer client.Close()
		server, err := net.Dial("unix", c.socket())
		if err != nil {
			t.Error(err)
			return
		}
		defer server.Close()
		io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { io.Copy(server, client); server.Close() }()
		io.Copy(client, server)
	}))
	t.Cleanup(srv.Close)
	t.Setenv("HTTPS_PROXY", srv.URL)
	cfg := c.cfg
	cfg.Endpoints = []string{"http://etcd.invalid:2379"}
	s := openClient(t, cfg).Store("", nil)
	t.Cleanup(func() { s.Close() })
	c.SetConfig(t, []byte(`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`))
	acquire(t, s, 1)
	if asked.Load() == 0 {
		t.Error("the proxy was not asked")
	}
}

// TestManyNetworksOneConnection: the stores of a client share one connection, and a change of
// one network costs no read, however many there are.
func TestManyNetworksOneConnection(t *testing.T) {
	const many = 120
	c := newCluster(t)
	client := openClient(t, c.cfg)
	set := func(i int, mtu int) {
		c.do(t, clientv3.OpPut(fmt.Sprintf("%s/net-%03d/config", prefix, i),
			fmt.Sprintf(`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","MTU":%d}}`, mtu)))
	}
	var configs []<-chan control.StoredNetwork
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range many {
		set(i, 1400)
		s := client.Store(fmt.Sprintf("net-%03d", i), nil)
		t.Cleanup(func() { s.Close() })
		configs = append(configs, s.WatchNetwork(ctx))
		drained(t, configs[i])
		receive(t, configs[i])
	}
	names := client.Store("", nil).Networks(ctx)
	drained(t, names)
	if got := receive(t, names); len(got) != many {
		t.Fatalf("%d networks", len(got))
	}
	if n := c.proxy.accepted.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	before := c.served(t, "Range")
	set(7, 1300)
	if n := receive(t, configs[7]); n.Network.Backend.MTU != 1300 {
		t.Errorf("MTU %d", n.Network.Backend.MTU)
	}
	set(many, 1400)
	if got := receive(t, names); len(got) != many+1 {
		t.Errorf("%d networks", len(got))
	}
	if reads := c.served(t, "Range") - before; reads != 0 {
		t.Errorf("%d reads after a change and a new network, want none", reads)
	}
}

// TestStoresCloseApart: a Store that is closed answers nothing more, and the others go on.
func TestStoresCloseApart(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	client := openClient(t, c.cfg)
	red, blue := client.Store("red", nil), client.Store("blue", nil)
	for _, s := range []*etcd.Store{red, blue} {
		if _, err := s.Init(t.Context(), []byte(config)); err != nil {
			t.Fatal(err)
		}
	}
	if err := red.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := red.Network(t.Context()); err == nil {
		t.Error("a closed store answers")
	}
	if _, err := blue.Network(t.Context()); err != nil {
		t.Errorf("the other store: %v", err)
	}
	if err := blue.Close(); err != nil {
		t.Fatal(err)
	}
	again := client.Store("red", nil)
	defer again.Close()
	if _, err := again.Network(t.Context()); err != nil {
		t.Errorf("opened again: %v", err)
	}
}
