package etcd_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// drained waits at the end of t until a channel is closed.
func drained[T any](t *testing.T, values <-chan T) {
	t.Helper()
	t.Cleanup(func() {
		for range values {
		}
	})
}

func TestWatchNetwork(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var log syncBuffer
	c.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	s := c.open(t)
	networks := s.WatchNetwork(t.Context())
	drained(t, networks)
	wants := func(mtu int) {
		t.Helper()
		if n := receive(t, networks); n.Err != nil || n.Network.Backend.MTU != mtu {
			t.Errorf("got %+v, want MTU %d", n, mtu)
		}
	}
	unusable := func(says string) {
		t.Helper()
		if n := receive(t, networks); n.Err == nil || !strings.Contains(n.Err.Error(), says) {
			t.Errorf("got %+v, want %q", n, says)
		}
		if !strings.Contains(log.String(), says) {
			t.Errorf("%q is not logged", says)
		}
	}
	text := func(mtu int) []byte {
		return fmt.Appendf(nil, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","MTU":%d}}`, mtu)
	}
	unusable("no network config")
	c.SetConfig(t, text(1400))
	wants(1400)
	c.SetConfig(t, append(text(1400), ' ')) // means the same
	for range 2 {                           // the good one is sent again, and the bad one logged again
		c.SetConfig(t, []byte(`{"Network":"10.5.0.0/31"}`))
		unusable("10.5.0.0/31")
		c.SetConfig(t, text(1400))
		wants(1400)
	}
	if n := strings.Count(log.String(), "not usable"); n != 3 {
		t.Errorf("logged %d times, want 3:\n%s", n, log.String())
	}
	connected := s.Status()
	c.SetConfig(t, nil)
	unusable("no network config")
	c.SetConfig(t, text(1300))
	wants(1300)
	if now := s.Status(); !now.Connected || now.Since != connected.Since {
		t.Errorf("changes of the config: %+v, was %+v", now, connected)
	}
	c.proxy.cut() // and what is compacted meanwhile
	c.SetConfig(t, text(1200))
	c.Compact(t)
	wants(1200)
}

func TestNetworks(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var log syncBuffer
	c.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	set := func(key string) { c.do(t, clientv3.OpPut(prefix+"/"+key, config)) }
	for _, key := range []string{"config", "red/config", "red/subnets/10.5.1.0-24", "red-2/config", "green/subnets/10.5.1.0-24", "green/config/x",
		"blue/x/config", "subnets/config", "subnets-b/config", "overlayd/config", "../config", "a b/config", "/config", "x\n/config", "é/config"} {
		set(key)
	}
	c.do(t, clientv3.OpPut(prefix+"-other/pink/config", config))
	networks := c.open(t).Networks(t.Context())
	drained(t, networks)
	wants := func(when string, names ...string) {
		t.Helper()
		if got := receive(t, networks); !slices.Equal(got, names) {
			t.Errorf("%s: %q, want %q", when, got, names)
		}
	}
	wants("at first", "red", "red-2")
	if n := strings.Count(log.String(), "network ignored"); n != 6 {
		t.Errorf("%d names ignored, want 6:\n%s", n, log.String())
	}
	set("red/config") // as it was
	set("blue/subnets/10.5.1.0-24")
	set("blue/config")
	wants("one more", "blue", "red", "red-2")
	c.do(t, clientv3.OpDelete(prefix+"/red/config"))
	wants("one less", "blue", "red-2")
	c.proxy.cut()
	set("amber/config")
	c.Compact(t)
	wants("across a gap", "amber", "blue", "red-2")
	c.do(t, clientv3.OpDelete(prefix, clientv3.WithPrefix()))
	wants("all gone")

	c.cfg.Prefix = prefix + "/amber" // is a network's own prefix
	set("amber/config")
	if _, err := c.open(t).Network(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestNetworksOfAnotherEtcd: a network that a restored backup or an emptied etcd lacks has not gone. One whose config somebody deletes has.
func TestNetworksOfAnotherEtcd(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var log syncBuffer
	c.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	put := func(name string) { c.do(t, clientv3.OpPut(prefix+"/"+name+"/config", config)) }
	remove := func(name string) { c.do(t, clientv3.OpDelete(prefix+"/"+name+"/config")) }
	put("red")
	s := c.open(t)
	c.snapshot(t)
	put("blue")
	networks := s.Networks(t.Context())
	drained(t, networks)
	wants := func(when string, names ...string) {
		t.Helper()
		if got := receive(t, networks); !slices.Equal(got, names) {
			t.Errorf("%s: %q, want %q", when, got, names)
		}
	}
	wants("at first", "blue", "red")
	c.restore(t) // without blue
	put("green")
	wants("restored", "blue", "green", "red")
	c.proxy.cut()
	put("amber")
	c.Compact(t)
	wants("across a gap", "amber", "blue", "green", "red")
	remove("red")
	wants("one is deleted", "amber", "blue", "green")
	put("blue")
	remove("blue")
	wants("one that is written again is deleted", "amber", "green")
	c.stop(t)
	c.start(t, "empty")
	put("pink")
	wants("emptied", "amber", "green", "pink")
	if n := strings.Count(log.String(), "networks are not in etcd"); n != 2 || !strings.Contains(log.String(), `networks="amber green"`) {
		t.Errorf("said %d times, want twice:\n%s", n, log.String())
	}
}

// TestNetworksOfAnotherEtcdAhead: the same when others have written so much before this host is connected again that the revision is ahead of what it was. One
// that was deleted while this host was away has gone.
func TestNetworksOfAnotherEtcdAhead(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		happens func(t *testing.T, c *cluster)
		want    []string
	}{
		"restored": {func(t *testing.T, c *cluster) { c.restore(t) }, []string{"blue", "green", "red"}},
		"emptied":  {func(t *testing.T, c *cluster) { c.stop(t); c.start(t, "empty") }, []string{"blue", "green", "red"}},
		"deleted":  {func(t *testing.T, c *cluster) { c.do(t, clientv3.OpDelete(prefix+"/blue/config")) }, []string{"green", "red"}},
		"one with a later one is deleted, and etcd compacts": {func(t *testing.T, c *cluster) {
			c.do(t, clientv3.OpDelete(prefix+"/red/config"))
			c.Compact(t)
		}, []string{"blue", "green"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			put := func(key string) { c.do(t, clientv3.OpPut(prefix+"/"+key, config)) }
			put("red/config")
			s := c.open(t)
			c.snapshot(t)
			put("blue/config")
			networks := s.Networks(t.Context())
			drained(t, networks)
			if got := receive(t, networks); !slices.Equal(got, []string{"blue", "red"}) {
				t.Fatalf("at first %q", got)
			}
			c.proxy.turn("")
			tt.happens(t, c)
			for i := range 9 {
				put(fmt.Sprintf("red/subnets/10.5.%d.0-24", i))
			}
			put("green/config")
			c.proxy.turn(c.socket())
			if got := receive(t, networks); !slices.Equal(got, tt.want) {
				t.Errorf("then %q, want %q", got, tt.want)
			}
		})
	}
}

// TestNetworkIsSeenSoon: among many leases, which cost it no reads.
func TestNetworkIsSeenSoon(t *testing.T) {
	c := newCluster(t)
	c.cfg.Endpoints = []string{c.url()}
	for i := range 2000 {
		c.do(t, clientv3.OpPut(fmt.Sprintf("%s/red/subnets/10.5.%d.%d-30", prefix, i/64, i%64*4), config))
	}
	networks := c.open(t).Networks(t.Context())
	drained(t, networks)
	receive(t, networks)
	before, begin := c.served(t, "Range"), time.Now()
	c.do(t, clientv3.OpPut(prefix+"/red/config", config))
	receive(t, networks)
	t.Logf("seen after %s", time.Since(begin))
	if reads := c.served(t, "Range") - before; reads != 0 {
		t.Errorf("%d reads, want none", reads)
	}
}

// TestConfigThatFlaps: a config that changes all the time is not read each time by all nodes, and the last one arrives.
func TestConfigThatFlaps(t *testing.T) {
	c := newCluster(t)
	c.cfg.Endpoints = []string{c.url()}
	text := func(mtu int) []byte {
		return fmt.Appendf(nil, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","MTU":%d}}`, mtu)
	}
	c.SetConfig(t, text(1300))
	networks := c.open(t).WatchNetwork(t.Context())
	drained(t, networks)
	receive(t, networks)
	reads, watches := c.served(t, "Range"), c.served(t, "Watch")
	const flips = 100
	for i := range flips {
		c.SetConfig(t, text(1400+i))
		receive(t, networks)
	}
	c.SetConfig(t, nil)
	if n := receive(t, networks); n.Err == nil {
		t.Errorf("got %+v of a config that was deleted", n)
	}
	if reads, watches := c.served(t, "Range")-reads, c.served(t, "Watch")-watches; reads+watches > flips/10 {
		t.Errorf("%d reads and %d watches for %d changes", reads, watches, flips)
	}
}
