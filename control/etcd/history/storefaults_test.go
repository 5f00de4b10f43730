package history_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// entry is a key of etcd.
type entry struct {
	key, value string
	lease      clientv3.LeaseID
}

// below returns what stands below the history's prefix and another one.
func (h *history) below(ctx context.Context, prefix string) (all []entry, err error) {
	got, err := h.world.client.Get(ctx, h.prefix+prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	for _, kv := range got.Kvs {
		all = append(all, entry{string(kv.Key), string(kv.Value), clientv3.LeaseID(kv.Lease)})
	}
	return all, nil
}

// disown takes a machine's entry out of the store with f, which says whether it did.
func (h *history) disown(what string, m *machine, f func(ctx context.Context, key string) (bool, error)) (func(), time.Duration) {
	s := m.running().ctl.Status()
	if !s.Held {
		return nil, 0
	}
	call := h.now()
	done, err := f(context.Background(), h.prefix+"/subnets/"+s.Lease.Key())
	if done || err != nil {
		h.note(void, host{}, call, subnetsOf(s.Lease)...)
	}
	h.logf(m.name(), "%s %s: %v, %v", s.Lease.CIDRs(), what, done, err)
	return nil, 0
}

func (h *history) revokeLease(m *machine) (func(), time.Duration) {
	return h.disown("etcd lease revoked", m, func(ctx context.Context, key string) (bool, error) {
		got, err := h.world.client.Get(ctx, key)
		if err != nil || len(got.Kvs) == 0 || got.Kvs[0].Lease == 0 {
			return false, err
		}
		_, err = h.world.client.Revoke(ctx, clientv3.LeaseID(got.Kvs[0].Lease))
		return err == nil, err
	})
}

func (h *history) deleteEntry(m *machine) (func(), time.Duration) {
	return h.disown("entry deleted", m, func(ctx context.Context, key string) (bool, error) {
		resp, err := h.world.client.Delete(ctx, key)
		return err == nil && resp.Deleted > 0, err
	})
}

// spoilEntry writes what is not a lease. The subnets of such a key stay its owner's; see control.AppendTaken.
func (h *history) spoilEntry(m *machine) (func(), time.Duration) {
	return h.disown("entry spoilt", m, func(ctx context.Context, key string) (bool, error) {
		_, err := h.world.client.Put(ctx, key, "spoilt")
		return false, err
	})
}

func (h *history) operatorRevokes(m *machine) (func(), time.Duration) {
	return h.disown("entry revoked", m, func(ctx context.Context, key string) (bool, error) {
		_, err := h.operator.Revoke(ctx, strings.TrimPrefix(key, h.prefix+"/subnets/"))
		return err == nil, err
	})
}

// snapshot keeps what there is, to be restored later.
func (h *history) snapshot(ctx context.Context) {
	if h.state != "" {
		h.save()
		h.outage.open()
		return
	}
	if all, err := h.below(ctx, "/"); err == nil {
		h.logf("etcd", "snapshot %d", len(h.snaps))
		h.snaps = append(h.snaps, all)
	}
}

// restore makes etcd what a snapshot has, as if it were stopped, restored and started again: what
// is not in the snapshot is gone, etcd leases too, and all connections end. Without a snapshot
// etcd has lost everything but the network config.
func (h *history) restore(what string, snapshot []entry) {
	ctx := context.Background()
	h.outage.close()
	defer h.outage.open()
	defer func() {
		for _, m := range h.machines {
			if p := m.running(); p != nil {
				p.link.cut()
			}
		}
	}()
	call := h.now()
	err := h.replace(ctx, snapshot)
	h.note(void, host{}, call)
	h.logf("etcd", "%s: %d keys: %v", what, len(snapshot), err)
}

func (h *history) replace(ctx context.Context, snapshot []entry) error {
	now, err := h.below(ctx, "/")
	if err != nil {
		return err
	}
	ops := map[string]clientv3.Op{}
	for _, e := range now {
		if e.key != h.prefix+"/config" {
			ops[e.key] = clientv3.OpDelete(e.key)
		}
		if e.lease != 0 {
			_, _ = h.world.client.Revoke(ctx, e.lease) // of several keys it is the same
		}
	}
	for _, e := range snapshot {
		ttl := leaseTTL
		if !strings.HasPrefix(e.key, h.prefix+"/subnets/") {
			ttl = h.nodeTTL
		}
		if e.lease != 0 {
			req := &pb.LeaseGrantRequest{ID: int64(e.lease), TTL: int64(ttl / time.Second)}
			_, _ = clientv3.RetryLeaseClient(h.world.client).LeaseGrant(ctx, req) // of several keys it is the same
		}
		ops[e.key] = clientv3.OpPut(e.key, e.value, clientv3.WithLease(e.lease))
	}
	var all []clientv3.Op
	for _, op := range ops {
		all = append(all, op)
	}
	for len(all) > 0 {
		n := min(len(all), 100)
		if _, err := h.world.client.Txn(ctx).Then(all[:n]...).Commit(); err != nil {
			return fmt.Errorf("restore: %w", err)
		}
		all = all[n:]
	}
	return nil
}
