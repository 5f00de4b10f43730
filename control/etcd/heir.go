package etcd

import (
	"context"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdkeys"
	"github.com/overlayd/overlayd/control/etcdrpc"
)

// A process that hands over to another process of this node leaves its lease and its record unchanged, and passes the
// handles of both on. The next process goes on with them. Nothing is withdrawn, and peers see no event.

// Bequeath implements control.Bequeather.
func (s *Store) Bequeath() []int64 {
	s.mu.Lock()
	s.bequeathed = true
	r := s.node
	s.mu.Unlock()
	if r == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), etcdrpc.CloseTimeout)
	defer cancel()
	if r.turn.Acquire(ctx, 1) != nil {
		return nil // the next process writes the record again
	}
	defer r.turn.Release(1)
	return []int64{int64(r.lease)}
}

// isBequeathed reports whether the record is another process's from now on.
func (s *Store) isBequeathed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bequeathed
}

// succeed goes on with the record of a process that has handed over its lease. ok is false if there is no such record.
func (r *nodeRecord) succeed(ctx context.Context, handed []int64) (ok bool) {
	if len(handed) == 0 || r.lease != 0 {
		return false
	}
	got, err := r.store.rpc.Get(ctx, "read node record", r.key)
	if err != nil || len(got.Kvs) == 0 || !slices.Contains(handed, got.Kvs[0].Lease) {
		return false
	}
	kv := got.Kvs[0]
	if was, ok := etcdkeys.ParseRecord(kv.Value); !ok || was.ID != r.node.ID {
		return false
	}
	if _, err := r.store.rpc.Refresh(ctx, leaseID(kv.Lease)); err != nil {
		return false
	}
	r.others = etcdkeys.UnknownFields(kv.Value)
	r.lease, r.revision = leaseID(kv.Lease), kv.ModRevision
	if string(kv.Value) == r.node.Value(r.others) || r.rewrite(ctx, kv) {
		return true
	}
	r.lease, r.revision = 0, 0
	return false
}

// rewrite has a record say what this process is: it may be of another version.
func (r *nodeRecord) rewrite(ctx context.Context, kv *mvccpb.KeyValue) (ok bool) {
	unchanged := clientv3.Compare(clientv3.ModRevision(r.key), "=", kv.ModRevision)
	resp, err := r.store.rpc.Txn(ctx, "write node record", []clientv3.Cmp{unchanged}, []clientv3.Op{r.put()}, nil)
	if err != nil || !resp.Succeeded {
		return false
	}
	r.revision = resp.Header.Revision
	return true
}

// succeed goes on with an entry whose etcd lease was handed over, if it says what this process wants it to.
func (a *acquisition) succeed(ctx context.Context, old, want control.Lease) (l control.Lease, ok bool) {
	if !slices.Contains(a.given.Handed, old.Handle) || old.Handle == 0 || !etcdkeys.SameValue(old, want) {
		return l, false
	}
	want.Handle = old.Handle
	l, err := a.renew(ctx, a.record, want)
	return l, err == nil
}
