package embedded_test

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
	"github.com/overlayd/overlayd/control/etcd/embedded"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

const prefix = "/test/network"

// TestGuardRefuses: what would end the cluster, lock its hosts out or show the rest of the store.
func TestGuardRefuses(t *testing.T) {
	s := start(t, embedded.Config{Dir: t.TempDir(), ListenClient: freeURL(t), Prefix: prefix})
	c := client(t, s.URLs()[0])
	inside, outside := prefix+"/config", "/other"
	get := func(key string, opts ...clientv3.OpOption) func(context.Context) error {
		return func(ctx context.Context) error { _, err := c.Get(ctx, key, opts...); return err }
	}
	txn := func(ifs []clientv3.Cmp, ops ...clientv3.Op) func(context.Context) error {
		return func(ctx context.Context) error { _, err := c.Txn(ctx).If(ifs...).Then(ops...).Commit(); return err }
	}
	watch := func(key string, opts ...clientv3.OpOption) func(context.Context) error {
		return func(ctx context.Context) error {
			stream, err := pb.NewWatchClient(c.ActiveConnection()).Watch(ctx)
			if err != nil {
				return err
			}
			op := clientv3.OpGet(key, opts...)
			create := &pb.WatchCreateRequest{Key: op.KeyBytes(), RangeEnd: op.RangeBytes(), PrevKv: key == inside}
			if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil {
				return err
			}
			_, err = stream.Recv()
			return err
		}
	}
	for name, call := range map[string]func(context.Context) error{
		"member add": func(ctx context.Context) error {
			_, err := c.MemberAdd(ctx, []string{"http://192.0.2.1:2380"})
			return err
		},
		"member list":  func(ctx context.Context) error { _, err := c.MemberList(ctx); return err },
		"auth enable":  func(ctx context.Context) error { _, err := c.AuthEnable(ctx); return err },
		"auth status":  func(ctx context.Context) error { _, err := c.AuthStatus(ctx); return err },
		"user add":     func(ctx context.Context) error { _, err := c.UserAdd(ctx, "root", "x"); return err },
		"role grant":   func(ctx context.Context) error { _, err := c.UserGrantRole(ctx, "root", "root"); return err },
		"compact":      func(ctx context.Context) error { _, err := c.Compact(ctx, 1); return err },
		"lease list":   func(ctx context.Context) error { _, err := c.Leases(ctx); return err },
		"defragment":   func(ctx context.Context) error { _, err := c.Defragment(ctx, s.URLs()[0]); return err },
		"alarm disarm": func(ctx context.Context) error { _, err := c.AlarmDisarm(ctx, &clientv3.AlarmMember{}); return err },
		"move leader":  func(ctx context.Context) error { _, err := c.MoveLeader(ctx, 1); return err },
		"hash":         func(ctx context.Context) error { _, err := c.HashKV(ctx, s.URLs()[0], 0); return err },
		"snapshot": func(ctx context.Context) error {
			r, err := c.Snapshot(ctx)
			if err == nil {
				_, err = r.Read(make([]byte, 1))
			}
			return err
		},
		"get outside":        get(outside),
		"get all":            get("\x00", clientv3.WithFromKey()),
		"get from inside on": get(inside, clientv3.WithFromKey()),
		"get around":         get("/test", clientv3.WithPrefix()),
		"get the prefix":     get(prefix, clientv3.WithPrefix()), // has /test/networkX too
		"put outside":        func(ctx context.Context) error { _, err := c.Put(ctx, outside, "x"); return err },
		"put a neighbour":    func(ctx context.Context) error { _, err := c.Put(ctx, prefix+"X/config", "x"); return err },
		"put much": func(ctx context.Context) error {
			_, err := c.Put(ctx, inside, strings.Repeat("x", 64<<10+1))
			return err
		},
		"delete outside":      func(ctx context.Context) error { _, err := c.Delete(ctx, outside); return err },
		"delete all":          func(ctx context.Context) error { _, err := c.Delete(ctx, "", clientv3.WithPrefix()); return err },
		"compare outside":     txn([]clientv3.Cmp{clientv3.Compare(clientv3.Version(outside), "=", 0)}),
		"txn put outside":     txn(nil, clientv3.OpPut(inside, "x"), clientv3.OpPut(outside, "x")),
		"txn in txn outside":  txn(nil, clientv3.OpTxn(nil, nil, []clientv3.Op{clientv3.OpGet(outside)})),
		"txn delete outside":  txn(nil, clientv3.OpDelete(outside)),
		"watch outside":       watch(outside),
		"watch all":           watch("\x00", clientv3.WithFromKey()),
		"watch around":        watch("/", clientv3.WithPrefix()),
		"watch values before": watch(inside), // each watch would read all of them for itself
	} {
		t.Run(name, func(t *testing.T) {
			err := call(t.Context())
			if st, _ := status.FromError(err); status.Code(err) != codes.PermissionDenied && !strings.Contains(err.Error(), "refused: ") {
				t.Errorf("%v (%v), want it refused", err, st.Code())
			}
		})
	}
	// None of it took effect, and the server still works.
	if _, err := c.Put(t.Context(), inside, "x"); err != nil {
		t.Error(err)
	}
}

// TestGuardServesStores: a Store does all that it does, and so does a client that keeps a lease
// as flannel's does.
func TestGuardServesStores(t *testing.T) {
	s := start(t, embedded.Config{Dir: t.TempDir(), ListenClient: freeURL(t), Prefix: prefix})
	store, err := etcd.Open(t.Context(), etcd.Config{Endpoints: s.URLs(), Prefix: prefix, Username: "u", Password: "p"})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	ctx := t.Context()
	if _, err := store.Init(ctx, []byte(`{"Network":"10.5.0.0/16"}`)); err != nil {
		t.Fatal(err)
	}
	ip := netip.MustParseAddr("192.0.2.1")
	node := control.Node{ID: "a", Name: "host-1", PublicIP: ip}
	lease, err := store.Acquire(ctx, node, []dataplane.VTEP{{Addr: ip, MAC: encap.MAC{2, 0, 0, 0, 0, 1}, VNI: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if lease, err = store.Renew(ctx, lease); err != nil {
		t.Fatal(err)
	}
	watched, cancel := context.WithCancel(ctx)
	updates := store.Watch(watched)
	if u := <-updates; len(u.Leases) != 1 {
		t.Errorf("update %+v", u)
	}
	if entries, err := store.Entries(ctx); err != nil || len(entries) != 1 || entries[0].TTL == 0 {
		t.Errorf("entries %+v, %v", entries, err)
	}
	for _, operate := range []func() error{
		func() error { return store.Reserve(ctx, lease) },
		func() error { _, _, err := store.Unreserve(ctx, lease.Key()); return err },
		func() error { _, err := store.Revoke(ctx, lease.Key()); return err },
		func() error { return store.Release(ctx, lease) },
	} {
		if err := operate(); err != nil {
			t.Error(err)
		}
	}
	cancel()
	for range updates {
	}

	c := client(t, s.URLs()[0])
	granted, err := c.Grant(ctx, 60)
	if err != nil {
		t.Fatal(err)
	}
	key := prefix + "/subnets/10.5.9.0-24"
	absent := clientv3.Compare(clientv3.Version(key), "=", 0)
	if r, err := c.Txn(ctx).If(absent).Then(clientv3.OpPut(key, "{}", clientv3.WithLease(granted.ID))).Commit(); err != nil || !r.Succeeded {
		t.Fatalf("%+v, %v", r, err)
	}
	events := c.Watch(ctx, prefix+"/subnets", clientv3.WithPrefix(), clientv3.WithRev(granted.Revision+1))
	if r := <-events; r.Err() != nil || len(r.Events) != 1 {
		t.Errorf("watch: %+v, %v", r, r.Err())
	}
	if _, err := c.KeepAliveOnce(ctx, granted.ID); err != nil {
		t.Error(err)
	}
	if r, err := c.TimeToLive(ctx, granted.ID, clientv3.WithAttachedKeys()); err != nil || len(r.Keys) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := c.Revoke(ctx, granted.ID); err != nil {
		t.Error(err)
	}
	if r, err := c.Get(ctx, prefix+"/subnets", clientv3.WithPrefix()); err != nil || len(r.Kvs) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := c.Status(ctx, s.URLs()[0]); err != nil {
		t.Error(err)
	}
}

// TestNothingOfTheProcessIsServed: its command line may hold a password.
func TestNothingOfTheProcessIsServed(t *testing.T) {
	s := start(t, embedded.Config{Dir: t.TempDir(), ListenClient: freeURL(t)})
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for path, want := range map[string]int{"/debug/vars": 404, "/debug/pprof/cmdline": 404, "/debug/requests": 404, "/metrics": 404, "/v3/kv/range": 404,
		"/health": 200, "/version": 200} {
		resp, err := c.Get(s.URLs()[0] + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, resp.StatusCode, want)
		}
	}
}
