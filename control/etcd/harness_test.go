package etcd_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
	"github.com/overlayd/overlayd/control/etcd/embedded"
	"github.com/overlayd/overlayd/control/etcd/etcdtest"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

func TestMain(m *testing.M) {
	etcdtest.Main()
	goleak.VerifyTestMain(m)
}

const prefix = "/test/network"

// cluster is a real etcd server, a client of it, and a proxy in front of it that
// every Store goes through. It is a controltest.Harness.
type cluster struct {
	dir    string
	server *embedded.Server
	client *clientv3.Client // past the proxy
	proxy  *proxy
	cfg    etcd.Config // of the Stores that Open makes
}

func newCluster(tb testing.TB) *cluster {
	tb.Helper()
	dir, err := os.MkdirTemp("", "etcd") // tb.TempDir is too long for a socket
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	c := &cluster{dir: dir}
	c.start(tb, "data")
	tb.Cleanup(func() { c.server.Stop() })
	c.client, err = clientv3.New(clientv3.Config{Endpoints: []string{c.url()}, Logger: zap.NewNop()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.client.Close() })
	c.proxy = newProxy(tb, c.socket())
	c.cfg = etcd.Config{Endpoints: []string{"http://" + c.proxy.addr()}, Prefix: prefix}
	return c
}

func (c *cluster) socket() string { return filepath.Join(c.dir, "sock") }
func (c *cluster) url() string    { return "unix://" + c.socket() }

// start starts a server on a data directory below c.dir.
func (c *cluster) start(tb testing.TB, data string) {
	tb.Helper()
	var err error
	c.server, err = embedded.Start(context.Background(), embedded.Config{Dir: filepath.Join(c.dir, data), ListenClient: c.url(), NoFsync: true})
	if err != nil {
		tb.Fatal(err)
	}
}

// served returns how many calls of a method of gRPC the servers of this process have begun.
func (c *cluster) served(tb testing.TB, method string) (n int) {
	tb.Helper()
	mux, answer := http.NewServeMux(), httptest.NewRecorder()
	etcdhttp.HandleMetrics(mux)
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text := answer.Body.Bytes()
	for _, m := range regexp.MustCompile(`grpc_server_started_total{grpc_method="`+method+`".*} (\d+)`).FindAllSubmatch(text, -1) {
		calls, _ := strconv.Atoi(string(m[1]))
		n += calls
	}
	return n
}

func (c *cluster) stop(tb testing.TB) {
	tb.Helper()
	if err := c.server.Stop(); err != nil {
		tb.Fatal(err)
	}
}

func (c *cluster) open(tb testing.TB) *etcd.Store {
	tb.Helper()
	s, err := etcd.Open(context.Background(), c.cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Close() })
	return s
}

// Open implements controltest.Harness, as do the methods below.
func (c *cluster) Open(tb testing.TB) control.Store { return c.open(tb) }

func (c *cluster) SetConfig(tb testing.TB, text []byte) {
	if text == nil {
		c.do(tb, clientv3.OpDelete(prefix+"/config"))
		return
	}
	c.do(tb, clientv3.OpPut(prefix+"/config", string(text)))
}

func (c *cluster) PutRaw(tb testing.TB, key string, value []byte) {
	c.do(tb, clientv3.OpPut(prefix+"/subnets/"+key, string(value)))
}

func (c *cluster) PutLeased(tb testing.TB, key string, value []byte) {
	grant, err := c.client.Grant(tb.Context(), 60)
	if err != nil {
		tb.Fatal(err)
	}
	c.do(tb, clientv3.OpPut(prefix+"/subnets/"+key, string(value), clientv3.WithLease(grant.ID)))
}

func (c *cluster) Expires(tb testing.TB, key string) bool {
	kvs := c.do(tb, clientv3.OpGet(prefix+"/subnets/"+key)).Get().Kvs
	return len(kvs) == 1 && kvs[0].Lease != 0
}

func (c *cluster) DeleteRaw(tb testing.TB, key string) {
	c.do(tb, clientv3.OpDelete(prefix+"/subnets/"+key))
}

func (c *cluster) GetRaw(tb testing.TB, key string) ([]byte, bool) {
	kvs := c.do(tb, clientv3.OpGet(prefix+"/subnets/"+key)).Get().Kvs
	if len(kvs) == 0 {
		return nil, false
	}
	return kvs[0].Value, true
}

func (c *cluster) Keys(tb testing.TB) []string {
	var keys []string
	for _, kv := range c.do(tb, clientv3.OpGet(prefix+"/subnets/", clientv3.WithPrefix())).Get().Kvs {
		keys = append(keys, strings.TrimPrefix(string(kv.Key), prefix+"/subnets/"))
	}
	return keys
}

func (c *cluster) Expire(tb testing.TB, key string) {
	kvs := c.do(tb, clientv3.OpGet(prefix+"/subnets/"+key)).Get().Kvs
	if len(kvs) == 0 {
		tb.Fatalf("expire %s: no such key", key)
	}
	if _, err := c.client.Revoke(tb.Context(), clientv3.LeaseID(kvs[0].Lease)); err != nil {
		tb.Fatal(err)
	}
}

func (c *cluster) Disconnect(testing.TB) { c.proxy.cut() }

func (c *cluster) Compact(tb testing.TB) {
	rev := c.do(tb, clientv3.OpGet("x")).Get().Header.Revision
	if _, err := c.client.Compact(tb.Context(), rev); err != nil {
		tb.Fatal(err)
	}
}

func (c *cluster) do(tb testing.TB, op clientv3.Op) clientv3.OpResponse {
	tb.Helper()
	resp, err := c.client.Do(tb.Context(), op)
	if err != nil {
		tb.Fatal(err)
	}
	return resp
}

// all returns every key with its value and etcd lease.
func (c *cluster) all(tb testing.TB) map[string]string {
	all := map[string]string{}
	for _, kv := range c.do(tb, clientv3.OpGet("", clientv3.WithPrefix())).Get().Kvs {
		all[string(kv.Key)] = string(kv.Value)
	}
	return all
}

// leases returns how many etcd leases there are.
func (c *cluster) leases(tb testing.TB) int {
	resp, err := c.client.Leases(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return len(resp.Leases)
}

// entry is one entry with etcd's bookkeeping; zero if it is missing.
type entry struct {
	value                    string
	created, revision, lease int64
}

func (c *cluster) entry(tb testing.TB, key string) entry {
	kvs := c.do(tb, clientv3.OpGet(prefix+"/subnets/"+key)).Get().Kvs
	if len(kvs) == 0 {
		return entry{}
	}
	return entry{string(kvs[0].Value), kvs[0].CreateRevision, kvs[0].ModRevision, kvs[0].Lease}
}

// applied returns how many writing requests etcd has seen, refused ones included.
func (c *cluster) applied(tb testing.TB) uint64 {
	st, err := c.client.Status(tb.Context(), c.url())
	if err != nil {
		tb.Fatal(err)
	}
	return st.RaftAppliedIndex
}

// config gives no node the subnets above 10.5.63.0, which the tests write for others.
const config = `{"Network":"10.5.0.0/16","SubnetMax":"10.5.63.0","Backend":{"Type":"vxlan"}}`

// node returns node number i and its VTEP.
func node(i int) (control.Node, []dataplane.VTEP) {
	ip := netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})
	n := control.Node{ID: fmt.Sprintf("id-%d", i), Name: fmt.Sprintf("host-%d", i), PublicIP: ip}
	return n, []dataplane.VTEP{{Addr: ip, MAC: encap.MAC{2, 0, 0, 0, byte(i >> 8), byte(i)}, VNI: 1}}
}

func acquire(tb testing.TB, s *etcd.Store, i int, previous ...netip.Prefix) control.Lease {
	tb.Helper()
	n, vteps := node(i)
	n.Previous = previous
	l, err := s.Acquire(tb.Context(), n, vteps)
	if err != nil {
		tb.Fatalf("Acquire node %d: %v", i, err)
	}
	return l
}

// hang is how long a test waits for what must happen before it says that it hangs.
// It is not a measure: the machine may be busy.
const hang = time.Minute

// eventually polls until ok, or fails.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(hang); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("not within %s: %s", hang, what)
		}
	}
}

// receive returns the next value of a channel that the store sends on, or fails.
func receive[T any](tb testing.TB, values <-chan T) (v T) {
	tb.Helper()
	select {
	case v, ok := <-values:
		if !ok {
			tb.Fatal("channel closed")
		}
		return v
	case <-time.After(hang):
		tb.Fatalf("nothing within %s", hang)
	}
	return v
}

// watch starts a Watch that is over before tb is.
func watch(tb testing.TB, s *etcd.Store) <-chan control.Update {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	updates := s.Watch(ctx)
	tb.Cleanup(func() {
		cancel()
		for range updates {
		}
	})
	return updates
}
