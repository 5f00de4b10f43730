package embedded

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// ofLeases is about what a lease has in the store, in bytes.
const ofLeases = 300

// counted returns how much of the history there is.
func (h *history) counted() int64 {
	kv := h.server.KV()
	return h.size(max(1, kv.FirstRev()), kv.Rev())
}

// changes waits for n events of a watch, and returns the revision of the first.
func changes(events clientv3.WatchChan, n int) (first int64, err error) {
	for got := 0; got < n; {
		select {
		case r, ok := <-events:
			if !ok || r.Err() != nil {
				return 0, fmt.Errorf("after %d events of %d: %v", got, n, r.Err())
			}
			if got == 0 && len(r.Events) > 0 {
				first = r.Events[0].Kv.ModRevision
			}
			got += len(r.Events)
		case <-time.After(20 * time.Second):
			return 0, fmt.Errorf("%d events of %d", got, n)
		}
	}
	return first, nil
}

// TestHistoryIsBounded: whatever is written, the history stays small, and yet a watch gets all of the last changes.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	puts := func(n, size int) []clientv3.Op {
		var ops []clientv3.Op
		for i := range n {
			ops = append(ops, clientv3.OpPut(fmt.Sprint("/p/", i), strings.Repeat("x", size)))
		}
		return ops
	}
	for _, c := range []struct {
		name    string
		writes  int
		ops     []clientv3.Op // of one
		deletes bool          // after each
		kept    int           // revisions
	}{
		{"leases", 6000, puts(1, ofLeases), false, 2000},
		{"long values", 300, puts(1, maxPut), false, 20},
		{"many in one", 200, puts(100, ofLeases), false, 20},
		{"deletions", 100, puts(100, 0), true, 40},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, client, _ := small(t, Config{Dir: t.TempDir()})
			ctx, h := t.Context(), s.guard.space.Load().history
			most := int64(0)
			for i := range c.writes {
				if _, err := client.Txn(ctx).Then(c.ops...).Commit(); err != nil {
					t.Fatal(err)
				}
				if c.deletes {
					if _, err := client.Delete(ctx, "/p/", clientv3.WithPrefix()); err != nil {
						t.Fatal(err)
					}
				}
				if i%10 == 0 {
					most = max(most, h.counted())
				}
			}
			if most > maxHistory+256<<10 || most < maxHistory/2 { // and one write
				t.Errorf("%d bytes of history, want about %d", most, maxHistory)
			}
			now := s.etcd.Server.KV().Rev()
			from := now - int64(c.kept) + 1
			if first, err := changes(client.Watch(ctx, "/p/", clientv3.WithPrefix(), clientv3.WithRev(from)), c.kept); err != nil || first != from {
				t.Errorf("the last %d changes, from %d: from %d, %v", c.kept, from, first, err)
			}
			if r := <-client.Watch(ctx, "/p/", clientv3.WithPrefix(), clientv3.WithRev(1)); r.CompactRevision == 0 || r.CompactRevision > from {
				t.Errorf("from the first change: %+v, want that it is compacted", r)
			}
		})
	}
}

// TestHistoryAfterTheEnd: a stream that ends after the server reads no database that is closed.
func TestHistoryAfterTheEnd(t *testing.T) {
	s, err := Start(t.Context(), Config{Dir: t.TempDir(), ListenClient: "unix://" + filepath.Join(t.TempDir(), "socket"), Prefix: "/p", NoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	h := s.guard.space.Load().history
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if bytes := h.size(1, 2); bytes != 0 {
		t.Errorf("%d bytes", bytes)
	}
}

// TestHistoryOfBefore: a server takes up data with a long history, and shortens it.
func TestHistoryOfBefore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := Start(t.Context(), Config{Dir: dir, ListenClient: "http://" + FreeAddress(t), NoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 * maxHistory / maxPut {
		if _, err := s.etcd.Server.Put(t.Context(), &pb.PutRequest{Key: fmt.Append(nil, "/p/", i%10), Value: make([]byte, maxPut)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	s, _, _ = small(t, Config{Dir: dir})
	soon(t, "a short history", func() error {
		if n := s.guard.space.Load().history.counted(); n > maxHistory {
			return fmt.Errorf("%d bytes", n)
		}
		return nil
	})
}

// TestWatchesCatchUp: many watches of one address that lag behind get all that they want, also after a restart of the server, and those that lag
// far behind keep no room from the others.
func TestWatchesCatchUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, c, _ := small(t, Config{Dir: dir})
	ctx, address := t.Context(), s.address()
	const writes, far, near = 2000, 1900, 3
	for i := range writes {
		if _, err := c.Put(ctx, fmt.Sprint("/p/", i%100), strings.Repeat("x", ofLeases)); err != nil {
			t.Fatal(err)
		}
	}
	now := s.etcd.Server.KV().Rev()
	var mu sync.Mutex
	var all []clientv3.WatchChan
	watch := func(wait *sync.WaitGroup, clients, n int) {
		for range clients {
			client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, Logger: zap.NewNop()})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { client.Close() })
			wait.Go(func() {
				from := now - int64(n) + 1
				events := client.Watch(ctx, "/p/", clientv3.WithPrefix(), clientv3.WithRev(from))
				if first, err := changes(events, n); err != nil || first != from {
					t.Errorf("the last %d changes, from %d: from %d, %v", n, from, first, err)
				}
				mu.Lock()
				defer mu.Unlock()
				all = append(all, events)
			})
		}
	}
	var laggards, others sync.WaitGroup
	began := time.Now()
	watch(&laggards, 8, far)
	watch(&others, 80, near)
	others.Wait()
	t.Logf("those that lag a little behind have caught up after %s", time.Since(began).Round(time.Millisecond))
	laggards.Wait()
	t.Logf("all have caught up after %s", time.Since(began).Round(time.Millisecond))

	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	s, err := Start(ctx, Config{Dir: dir, ListenClient: "http://" + address, Prefix: "/p", NoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	soon(t, "a write", func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := c.Put(ctx, "/p/new", "x")
		return err
	})
	for _, events := range all {
		if _, err := changes(events, 1); err != nil {
			t.Error("after the restart:", err)
		}
	}
}
