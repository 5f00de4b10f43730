package embedded

import (
	"context"
	"errors"
	"slices"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/lease"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxDeleted is how many keys one request, or the end of one lease, may delete. For each of them every watch has an event, and all these events are in memory
// at the same time.
const maxDeleted = 250

// bulk bounds how many keys are deleted at once.
type bulk struct {
	mu     sync.Mutex
	coming map[int64]int // keys that requests are about to attach to a lease
}

// check judges a request that writes. done is to be called when it has been answered.
func (b *bulk) check(ctx context.Context, server *etcdserver.EtcdServer, req any) (done func(), err error) {
	w := written{leases: map[int64]int{}}
	w.add(req)
	n := 0
	for _, r := range w.deletes {
		found, err := server.KV().Range(ctx, r.Key, r.RangeEnd, mvcc.RangeOptions{CountOnly: true})
		if err != nil {
			return nil, status.Error(codes.Unavailable, "count the keys to delete: "+err.Error())
		}
		if n += found.Count; n > maxDeleted {
			return nil, refusal("%d keys from %.80q on are to be deleted: delete at most %d in one request", n, r.Key, maxDeleted)
		}
	}
	return b.attach(ctx, server, w.leases)
}

// attach judges how many keys a lease will have.
func (b *bulk) attach(ctx context.Context, server *etcdserver.EtcdServer, leases map[int64]int) (done func(), err error) {
	b.expect(leases, 1)
	done = func() { b.expect(leases, -1) }
	for id := range leases {
		l, err := server.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: id, Keys: true})
		switch {
		case errors.Is(err, lease.ErrLeaseNotFound): // as etcd will say
		case err != nil:
			done()
			return nil, status.Error(codes.Unavailable, "look at the keys of the lease: "+err.Error())
		case len(l.Keys)+b.expected(id) > maxDeleted:
			done()
			return nil, refusal("lease %x would have %d keys: want at most %d", id, len(l.Keys)+leases[id], maxDeleted)
		}
	}
	return done, nil
}

func (b *bulk) expect(leases map[int64]int, times int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, n := range leases {
		if b.coming[id] += times * n; b.coming[id] == 0 {
			delete(b.coming, id)
		}
	}
}

func (b *bulk) expected(id int64) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.coming[id]
}

// written is what a request may write.
type written struct {
	deletes []*pb.DeleteRangeRequest // of ranges
	leases  map[int64]int            // how many keys it attaches to each
}

func (w *written) add(req any) {
	switch r := req.(type) {
	case *pb.PutRequest:
		if r.Lease != 0 {
			w.leases[r.Lease]++
		}
	case *pb.DeleteRangeRequest:
		if len(r.RangeEnd) > 0 {
			w.deletes = append(w.deletes, r)
		}
	case *pb.TxnRequest:
		for _, op := range slices.Concat(r.Success, r.Failure) {
			switch r := op.Request.(type) {
			case *pb.RequestOp_RequestPut:
				w.add(r.RequestPut)
			case *pb.RequestOp_RequestDeleteRange:
				w.add(r.RequestDeleteRange)
			case *pb.RequestOp_RequestTxn:
				w.add(r.RequestTxn)
			}
		}
	}
}
