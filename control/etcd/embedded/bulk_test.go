package embedded

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
)

// putMany puts n keys below a prefix, on a lease if that is not 0.
func (s *server) putMany(below string, n int, lease clientv3.LeaseID) error {
	const batch = 100
	for i := 0; i < n; i += batch {
		var ops []clientv3.Op
		for j := range min(batch, n-i) {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("%s%06d", below, i+j)+strings.Repeat("k", 900), "", clientv3.WithLease(lease)))
		}
		if _, err := s.client.Txn(s.t.Context()).Then(ops...).Commit(); err != nil {
			return err
		}
	}
	return nil
}

// TestManyKeysAtOnce: no request deletes more than maxDeleted keys, and no lease has more, whatever comes at the same time. The error says how many there are.
func TestManyKeysAtOnce(t *testing.T) {
	s := startProcess(t)
	ctx := t.Context()
	if err := s.putMany("/p/a/", maxDeleted, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.putMany("/p/b/", maxDeleted/2+1, 0); err != nil {
		t.Fatal(err)
	}
	all, half := clientv3.OpDelete("/p/", clientv3.WithPrefix()), clientv3.OpDelete("/p/b/", clientv3.WithPrefix())
	for name, op := range map[string]clientv3.Op{
		"a range":                    all,
		"a range in a transaction":   clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpDelete("/p/a"), all}, nil),
		"ranges of a transaction":    clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Version("/p/a"), "=", 0)}, []clientv3.Op{half}, []clientv3.Op{half}),
		"a transaction in another's": clientv3.OpTxn(nil, nil, []clientv3.Op{clientv3.OpTxn(nil, []clientv3.Op{all}, nil)}),
	} {
		if _, err := s.client.Do(ctx, op); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("are to be deleted: delete at most %d in one request", maxDeleted)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, below := range []string{"/p/a/", "/p/b/"} {
		if _, err := s.client.Delete(ctx, below, clientv3.WithPrefix()); err != nil {
			t.Errorf("what may be deleted: %v", err)
		}
	}

	grant, err := s.client.Grant(ctx, 3600)
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	for i := range 40 {
		wait.Go(func() {
			if err := s.putMany(fmt.Sprintf("/p/%02d/", i), 100, grant.ID); err != nil && !strings.Contains(err.Error(), fmt.Sprintf("keys: want at most %d", maxDeleted)) {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	left, err := s.client.TimeToLive(ctx, grant.ID)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.client.Get(ctx, "/p/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || left.TTL <= 0 || got.Count > maxDeleted || got.Count < 100 {
		t.Errorf("%d keys of a lease with %d s: %v", got.Count, left.TTL, err)
	}
	if _, err := s.client.Put(ctx, "/p/x", "", clientv3.WithLease(12345)); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Errorf("a lease that there is not: %v", err)
	}
	if _, err := s.client.Revoke(ctx, grant.ID); err != nil {
		t.Error(err)
	}
}

// TestGreedyDeletions: deletions of as many keys as may be cost little memory, however many watches see them.
func TestGreedyDeletions(t *testing.T) {
	watch := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte("/p/"), RangeEnd: []byte("/p0")}}}
	s := startProcess(t)
	const pieces = 10_000 / maxDeleted
	for i := range pieces {
		if err := s.putMany(fmt.Sprintf("/p/%d/", i), maxDeleted, 0); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		if _, err := s.greedy("Watch/Watch", 1, slices.Repeat([]proto.Message{watch}, 40)...); err != nil {
			t.Fatal(err)
		}
	}
	before := s.peak()
	for i := range pieces {
		if _, err := s.client.Delete(t.Context(), fmt.Sprintf("/p/%d/", i), clientv3.WithPrefix()); err != nil {
			t.Error(err)
		}
	}
	most := s.peak()
	t.Logf("%d kB before, %d kB at most", before, most)
	if most > maxMemory && !raceEnabled {
		t.Errorf("%d kB of memory, want at most %d", most, maxMemory)
	}
}
