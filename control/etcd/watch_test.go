package etcd_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// table is what a receiver makes of updates: key to ModRevision.
type table map[string]int64

func (tb table) apply(u control.Update) {
	if u.Reset {
		clear(tb)
	}
	for _, k := range u.Deleted {
		delete(tb, k)
	}
	for _, l := range u.Leases {
		tb[l.Key()] = l.ModRevision
	}
}

// follow applies updates until the table equals the store.
func follow(t *testing.T, c *cluster, updates <-chan control.Update, tb table) (resets int) {
	t.Helper()
	begin := time.Now()
	for time.Since(begin) < hang {
		select {
		case u := <-updates:
			if u.Reset {
				resets++
			}
			tb.apply(u)
			continue
		case <-time.After(5 * time.Millisecond): // none is waiting: a ticker would let each cost a look at a busy store
		}
		want := table{}
		for _, kv := range c.do(t, clientv3.OpGet(prefix+"/subnets/", clientv3.WithPrefix())).Get().Kvs {
			want[strings.TrimPrefix(string(kv.Key), prefix+"/subnets/")] = kv.ModRevision
		}
		if maps.Equal(tb, want) {
			t.Logf("the same as the store after %s", time.Since(begin))
			return resets
		}
	}
	t.Fatalf("not the same as the store within %s: %v", hang, tb)
	return 0
}

func value(i int) []byte {
	n, vteps := node(i)
	l := control.Lease{PublicIP: n.PublicIP, BackendType: "vxlan", Backend: control.VTEPData{VNI: 1, MAC: vteps[0].MAC}}
	return l.Value()
}

func key(i int) string { return fmt.Sprintf("10.5.%d.0-24", i) }

func TestWatchNeverReadAndCompacted(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	updates := watch(t, c.open(t))
	c.PutRaw(t, key(1), value(1))
	tb := table{}
	follow(t, c, updates, tb)
	for i := range 1000 { // nobody reads updates meanwhile
		c.PutRaw(t, key(i%200), value(i))
	}
	c.DeleteRaw(t, key(1))
	c.Compact(t)
	follow(t, c, updates, tb)
	c.PutRaw(t, key(1), value(9))
	follow(t, c, updates, tb)
}

// TestWatchCompactedInAGap compacts what a watch would have to resume from.
func TestWatchCompactedInAGap(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	updates := watch(t, c.open(t))
	tb := table{}
	c.PutRaw(t, key(1), value(1))
	follow(t, c, updates, tb)
	c.stop(t)
	c.start(t, "data")
	for i := range 10 {
		c.PutRaw(t, key(1), value(i)) // same key: only the attributes change
	}
	c.PutRaw(t, key(2), value(2))
	c.DeleteRaw(t, key(1))
	c.Compact(t)
	if resets := follow(t, c, updates, tb); resets == 0 {
		t.Error("caught up without a Reset")
	}
}

func TestWatchServerStopsAndStarts(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	var log syncBuffer
	c.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	s := c.open(t)
	l := acquire(t, s, 1)
	updates := watch(t, s)
	tb := table{}
	follow(t, c, updates, tb)
	for range 3 {
		c.stop(t)
		// The proxy before etcd takes a connection, and then ends it: it depends on the moment how that is said.
		if _, err := s.Renew(t.Context(), l); err == nil || !strings.Contains(err.Error(), "does not answer") && !strings.Contains(err.Error(), "server preface: EOF") {
			t.Errorf("Renew without etcd: %v, want that etcd does not answer", err)
		}
		c.start(t, "data")
		c.PutRaw(t, key(2), value(2))
		follow(t, c, updates, tb)
		c.DeleteRaw(t, key(2))
	}
	if _, err := s.Renew(t.Context(), l); err != nil {
		t.Errorf("Renew after the restarts: %v", err)
	}
	if n := strings.Count(log.String(), "interrupted"); n > 6 {
		t.Errorf("%d lines about interruptions, want one per outage:\n%s", n, log.String())
	}
}

// TestStoreWiped loses all of etcd's data under a running node (facts F07).
func TestStoreWiped(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	var log syncBuffer
	c.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	s := c.open(t)
	for i := range 50 {
		c.PutRaw(t, key(200), value(i)) // the new etcd's revisions are far below
	}
	l := acquire(t, s, 1)
	updates := watch(t, s)
	tb := table{}
	follow(t, c, updates, tb)
	c.stop(t)
	c.start(t, "data2")
	if resets := follow(t, c, updates, tb); resets == 0 || len(tb) != 0 {
		t.Errorf("%d resets and %d entries, want a Reset to none", resets, len(tb))
	}
	c.SetConfig(t, []byte(config))
	renewed, err := s.Renew(t.Context(), l)
	if err != nil || renewed.Subnet != l.Subnet {
		t.Fatalf("Renew after the wipe: %v", err)
	}
	follow(t, c, updates, tb)
	if joined := acquire(t, c.open(t), 2); joined.Subnet == l.Subnet {
		t.Error("a joiner got the same subnet")
	}
	follow(t, c, updates, tb)
	if len(tb) != 2 {
		t.Errorf("watch sees %d leases, want 2", len(tb))
	}
	if !strings.Contains(log.String(), "replaced or restored") {
		t.Errorf("no line about the wipe in:\n%s", log.String())
	}
	if n := c.leases(t); n != 4 {
		t.Errorf("%d etcd leases, want 4", n)
	}
}

func TestWatchListsAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.cfg.Relist = time.Second
	s := c.open(t)
	updates := watch(t, s)
	for range 3 {
		if u := receive(t, updates); !u.Reset {
			t.Errorf("update %+v, want a Reset", u)
		}
	}
}

func TestWatchBatchesAndFillsIn(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.open(t)
	updates := watch(t, s)
	receive(t, updates)
	put := func(key, value string) clientv3.Op { return clientv3.OpPut(prefix+"/subnets/"+key, value) }
	resp, err := c.client.Txn(t.Context()).Then(put(key(1), string(value(1))), put(key(2), string(value(2))),
		put(key(3), "junk"), put("garbage", "x"), clientv3.OpPut(prefix+"/subnetsX/"+key(9), string(value(9)))).Commit()
	if err != nil {
		t.Fatal(err)
	}
	u := receive(t, updates)
	if u.Reset || len(u.Leases) != 2 || len(u.Bad) != 2 || len(u.Deleted) != 0 {
		t.Fatalf("update %+v, want 2 leases and 2 bad ones", u)
	}
	if l := u.Leases[0]; l.CreateRevision != resp.Header.Revision || l.ModRevision != resp.Header.Revision || l.Handle != 0 {
		t.Errorf("lease %+v, want revisions %d", l, resp.Header.Revision)
	}
	if _, err := c.client.Delete(t.Context(), prefix+"/subnets/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	if u := receive(t, updates); len(u.Deleted) != 4 {
		t.Errorf("update %+v, want 4 deleted", u)
	}
	if st := s.Status(); !st.Connected || st.Kind != "etcd" || st.Revision != resp.Header.Revision+1 || st.LastAnswer.IsZero() {
		t.Errorf("status %+v, want revision %d", st, resp.Header.Revision+1)
	}
}

// fill writes n leases below 10.0.0.0/8, a hundred at a time.
func fill(tb testing.TB, c *cluster, n int) {
	tb.Helper()
	var ops []clientv3.Op
	for i := range n {
		p := netip.AddrFrom4([4]byte{10, byte(i >> 12), byte(i >> 4), byte(i << 4)})
		ops = append(ops, clientv3.OpPut(fmt.Sprintf("%s/subnets/%s-28", prefix, p), string(value(i))))
		if len(ops) == 100 || i == n-1 {
			if _, err := c.client.Txn(context.Background()).Then(ops...).Commit(); err != nil {
				tb.Fatal(err)
			}
			ops = ops[:0]
		}
	}
}

// TestWatchAll: as many leases as are looked at are listed, and deleted by one request, in a few seconds.
func TestWatchAll(t *testing.T) {
	c := newCluster(t)
	const n = control.MaxLeases // ten pages
	fill(t, c, n)
	begin := time.Now()
	updates := watch(t, c.open(t))
	u := receive(t, updates)
	t.Logf("first Reset of %d leases after %s", len(u.Leases), time.Since(begin))
	if len(u.Leases) != n || len(u.Bad) != 0 {
		t.Errorf("%d leases and %d bad, want %d and 0", len(u.Leases), len(u.Bad), n)
	}
	begin = time.Now()
	if _, err := c.client.Delete(t.Context(), prefix+"/subnets/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	for gone := 0; gone < n; {
		u := receive(t, updates)
		if u.Reset || len(u.Deleted) == 0 {
			t.Fatalf("update with %d leases, reset %v, want deleted ones", len(u.Leases), u.Reset)
		}
		gone += len(u.Deleted)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("deleted after %s: etcd cuts what it sends", took)
	}
}

func BenchmarkFirstReset5000(b *testing.B) {
	c := newCluster(b)
	c.cfg.Endpoints = []string{c.url()}
	fill(b, c, 5000)
	for b.Loop() {
		s := c.open(b)
		ctx, cancel := context.WithCancel(b.Context())
		updates := s.Watch(ctx)
		if u := <-updates; len(u.Leases) != 5000 {
			b.Fatalf("%d leases", len(u.Leases))
		}
		cancel()
		for range updates {
		}
		s.Close()
	}
}

// syncBuffer is a log that may be read while it is written.
type syncBuffer = netnstest.Log

// putLeases writes n leases with 16 bits of subnet from at on, with spaces behind each, and returns how many bytes they have.
func (c *cluster) putLeases(t *testing.T, at, n, spaces int) (bytes int) {
	t.Helper()
	var puts []clientv3.Op
	for i := at; i < at+n; i++ {
		p := clientv3.OpPut(prefix+"/subnets/"+fmt.Sprintf("10.%d.%d.0-24", 5+i/256, i%256), string(value(i%200))+strings.Repeat(" ", spaces))
		puts, bytes = append(puts, p), bytes+len(p.KeyBytes())+len(p.ValueBytes())
		if len(puts) == 100 || i == at+n-1 || spaces > 0 {
			if _, err := c.client.Txn(t.Context()).Then(puts...).Commit(); err != nil {
				t.Fatal(err)
			}
			puts = nil
		}
	}
	return bytes
}

// TestWatchSkipsLongKeys: entries whose names are very long and begin alike are one bad entry, and those behind them are seen.
func TestWatchSkipsLongKeys(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	long := func(end string) string { return "10.5.1.0-24" + strings.Repeat("x", 1<<20) + end }
	for i := range 8 {
		c.PutRaw(t, long(fmt.Sprint(i)), value(1))
	}
	c.PutRaw(t, key(2), value(2))
	updates := watch(t, c.open(t))
	u := receive(t, updates)
	if len(u.Bad) != 1 || len(u.Leases) != 1 || u.Leases[0].Key() != key(2) {
		t.Errorf("%d bad entries and leases %v, want one of each", len(u.Bad), u.Leases)
	}
	c.PutRaw(t, long("y"), value(1))
	if u = receive(t, updates); len(u.Bad) != 1 || len(u.Bad[0].Key) > 256 {
		t.Errorf("bad entries %.300v, want one with a short key", u.Bad)
	}
}

// TestWatchOverASlowWay: a page of leases that takes longer to arrive than a call may is read in smaller pages.
func TestWatchOverASlowWay(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	bytes := c.putLeases(t, 0, 1500, 0)
	s := c.open(t)
	c.proxy.pace.Store(int64(7*time.Second) / int64(bytes))
	follow(t, c, watch(t, s), table{})
}

// TestWatchOfLongValuesOverASlowWay: a page that is late because the values in it are long is read in smaller pages, wherever it is.
func TestWatchOfLongValuesOverASlowWay(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.putLeases(t, 0, 2000, 0)
	bytes := c.putLeases(t, 2000, 50, 60_000)
	s := c.open(t)
	c.proxy.pace.Store(int64(7*time.Second) / int64(bytes))
	follow(t, c, watch(t, s), table{})
}
