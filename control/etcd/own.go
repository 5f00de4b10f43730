package etcd

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdrpc"
)

// hold notes the lease that this node has according to the store. The zero value means that it has no lease.
func (s *Store) hold(l control.Lease) {
	s.mu.Lock()
	s.held, s.wentBack = l, 0
	clear(s.ghosts)
	clear(s.beats)
	all := s.listed
	s.listed = nil
	s.mu.Unlock()
	if all != nil {
		s.noteOwn(all)
	}
}

// heldRevision returns the revision at which this node's lease was written last; 0: it has none, or etcd is known to have gone back
// since, and so that revision tells nothing any more.
func (s *Store) heldRevision() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wentBack != 0 {
		return 0
	}
	return s.held.ModRevision
}

// noteOwn notes which of all entries are this node's own beside its lease: a restore of an older snapshot has brought
// them back. An entry of the same address is another's if it was not written under this node's tag, and has another MAC
// or one that comes with the address.
func (s *Store) noteOwn(all []control.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = nil
	if s.held == (control.Lease{}) || s.node == nil {
		s.listed = all
		return
	}
	tag := etcdrpc.LeaseTag(s.node.node.ID)
	for _, l := range all {
		wrote := leaseID(l.Handle).HasTag(tag) || l.Backend == s.held.Backend && l.BackendV6 == s.held.BackendV6 && !l.IsDerived()
		if l.Handle == 0 || !wrote || !l.SamePublicIP(s.held) || l.Key() == s.held.Key() {
			continue
		}
		if s.own == nil {
			s.own, s.ownSince = map[string]control.Lease{}, time.Now()
		}
		s.own[l.Key()] = l
	}
}

// ownGrace is how long such an entry stays: whoever has the subnet by now puts its own entry in its place, and nobody
// who looks for a free one comes between.
const ownGrace = 2 * time.Second

// dueOwn returns the entries to be deleted, and the lease that the node has instead.
func (s *Store) dueOwn() (due []control.Lease, held control.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.ownSince) < ownGrace {
		return nil, s.held
	}
	for _, l := range s.own {
		due = append(due, l)
	}
	return due, s.held
}

// deleteOwn deletes what noteOwn has noted, while the node has another lease in the store.
func (r *nodeRecord) deleteOwn(ctx context.Context) {
	due, held := r.store.dueOwn()
	for _, l := range due {
		done, err := r.deleteOne(ctx, l, held)
		switch {
		case err != nil:
			r.store.log.DebugContext(ctx, "own entry of an earlier lease not deleted", "subnet", l.CIDRs(), "err", err)
			return
		case done:
			r.store.mu.Lock()
			delete(r.store.own, l.Key())
			r.store.mu.Unlock()
		}
	}
}

// deleteOne deletes l while the record is this process's and held stands. It reports whether l is no longer to be deleted.
func (r *nodeRecord) deleteOne(ctx context.Context, l, held control.Lease) (done bool, err error) {
	if err := r.turn.Acquire(ctx, 1); err != nil {
		return false, err
	}
	record := int64(r.lease)
	r.turn.Release(1)
	if record == 0 {
		return false, errWithdrawn
	}
	s := r.store
	key, ownKey := s.keys.Lease(l), s.keys.Lease(held)
	ifs := []clientv3.Cmp{clientv3.Compare(clientv3.LeaseValue(r.key), "=", record), clientv3.Compare(clientv3.ModRevision(key), "=", l.ModRevision),
		clientv3.Compare(clientv3.LeaseValue(ownKey), "=", held.Handle), clientv3.Compare(clientv3.CreateRevision(ownKey), ">", 0)}
	resp, err := s.rpc.Txn(ctx, "delete lease "+l.CIDRs(), ifs, []clientv3.Op{clientv3.OpDelete(key)}, []clientv3.Op{clientv3.OpGet(key)})
	if err != nil {
		return false, err
	}
	if resp.Succeeded {
		s.log.WarnContext(ctx, "entry of an earlier lease of this node was back in etcd: deleted", "subnet", l.CIDRs(), "own", held.CIDRs())
		s.rpc.Retire(ctx, leaseID(l.Handle))
		return true, nil
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) > 0 && kvs[0].ModRevision == l.ModRevision {
		return false, fmt.Errorf("the node's own lease %s or its record is not back yet", held.CIDRs())
	}
	return true, nil // whoever has the subnet now has written it
}
