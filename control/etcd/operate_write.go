package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdrpc"
)

// errMoved says that an entry was changed between reading and writing it. Every write of an
// operator compares what was read, so that it is right beside the daemons that own the entries.
var errMoved = errors.New("somebody has changed it meanwhile: try again")

// Reserve makes the subnets of l a reservation for the node with the public IPs of l: an
// entry that never expires, which that node takes up when it next acquires a lease. What the
// node has there already stays as it is, but for its TTL. An earlier revocation is forgotten.
// An error names what stands in the way: the network config, or another's entry.
func (s *Store) Reserve(ctx context.Context, l control.Lease) error {
	l = l.Reservation()
	value, before, err := s.reservable(ctx, l)
	if err != nil {
		return err
	}
	key := s.keys.Lease(l)
	unchanged := clientv3.Compare(clientv3.ModRevision(key), "=", before.ModRevision)
	resp, err := s.rpc.Txn(ctx, "reserve "+l.CIDRs(), []clientv3.Cmp{unchanged},
		[]clientv3.Op{clientv3.OpPut(key, value), clientv3.OpDelete(s.keys.Revoked(l), clientv3.WithPrevKV())}, nil)
	switch {
	case err != nil:
		return err
	case !resp.Succeeded:
		return fmt.Errorf("reserve %s: %w", l.CIDRs(), errMoved)
	}
	s.rpc.Retire(ctx, leaseID(before.Handle))
	for _, kv := range resp.Responses[1].GetResponseDeleteRange().PrevKvs {
		s.rpc.Retire(ctx, leaseID(kv.Lease))
	}
	if before.ModRevision != 0 {
		return nil
	}
	l.CreateRevision, l.ModRevision = resp.Header.Revision, resp.Header.Revision
	if err := s.refuseOverlap(ctx, l); err != nil { // written meanwhile: see yield
		return errors.Join(err, s.delete(ctx, l))
	}
	return nil
}

// reservable returns the value that the reservation l gets: that of the entry which the node already has there,
// if there is one, or else that of l. An error says why it cannot be reserved.
func (s *Store) reservable(ctx context.Context, l control.Lease) (value string, before control.Lease, err error) {
	n, err := s.Network(ctx)
	if err != nil {
		return "", before, err
	}
	if !control.Compatible(n, l.Subnet, l.IPv6Subnet) {
		return "", before, fmt.Errorf("%s does not fit the network: want %s", l.CIDRs(), wanted(n))
	}
	got, err := s.rpc.Get(ctx, "read lease "+l.CIDRs(), s.keys.Lease(l))
	if err != nil {
		return "", before, err
	}
	value = string(l.Value())
	if len(got.Kvs) > 0 {
		before, err = s.keys.Parse(got.Kvs[0])
		switch {
		case err != nil:
			return "", before, fmt.Errorf("%s exists and is not a lease (%w): revoke it first", l.CIDRs(), err)
		case !before.SamePublicIP(l):
			return "", before, fmt.Errorf("%s belongs to %s", l.CIDRs(), before.Identity())
		}
		value = string(got.Kvs[0].Value)
	}
	return value, before, s.refuseOverlap(ctx, l)
}

// wanted says which subnets fit.
func wanted(n control.Network) string {
	v4 := fmt.Sprintf("a /%d of %s from %s to %s", n.SubnetLen, n.Network, n.SubnetMin, n.SubnetMax)
	v6 := fmt.Sprintf("a /%d of %s from %s to %s", n.IPv6SubnetLen, n.IPv6Network, n.IPv6SubnetMin, n.IPv6SubnetMax)
	switch {
	case !n.EnableIPv6:
		return v4
	case !n.EnableIPv4:
		return v6
	}
	return v4 + ", and " + v6
}

// refuseOverlap says which other entry takes a part of l, and is older if l is written.
func (s *Store) refuseOverlap(ctx context.Context, l control.Lease) error {
	created := cmp.Or(l.CreateRevision, math.MaxInt64)
	rivals, _, err := s.rivals(ctx, l, created, taken)
	for _, subnets := range s.keys.CIDRs(rivals) {
		if subnets != l.CIDRs() {
			return fmt.Errorf("%s overlaps %s, which is taken", l.CIDRs(), subnets)
		}
	}
	return err
}

// Unreserve ends the reservation of a subnet, given as such or by its key. The entry of a
// node that is alive and has taken it up becomes a lease with a TTL, which the node then
// renews; any other is deleted, and deleted is true.
func (s *Store) Unreserve(ctx context.Context, name string) (l control.Lease, deleted bool, err error) {
	kv, err := s.find(ctx, name)
	if err != nil {
		return l, false, err
	}
	l, err = s.keys.Parse(kv)
	switch {
	case err != nil:
		return l, false, fmt.Errorf("%s is not a lease: %w: revoke it", control.CIDRsOf(s.keys.Name(kv.Key)), err)
	case kv.Lease != 0:
		return l, false, fmt.Errorf("%s is a lease of %s and no reservation: it expires by itself, or can be revoked", l.CIDRs(), l.Identity())
	}
	record, err := s.rpc.Get(ctx, "read node record", s.keys.Node(l.Identity()))
	if err != nil {
		return l, false, err
	}
	var revision int64 // 0: there is no record
	if len(record.Kvs) > 0 {
		revision = record.Kvs[0].ModRevision
	}
	taken, err := s.isTakenUp(ctx, l, revision)
	if err != nil {
		return l, false, err
	}
	key := s.keys.Lease(l)
	// A record is rewritten by each write of its node, which so cannot come between unseen.
	unchanged := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", kv.ModRevision),
		clientv3.Compare(clientv3.ModRevision(s.keys.Node(l.Identity())), "=", revision)}
	write := clientv3.OpDelete(key)
	if deleted = !taken; taken {
		id := etcdrpc.NewLeaseID("")
		if _, err := s.rpc.Grant(ctx, id, s.cfg.LeaseTTL); err != nil {
			return l, false, err
		}
		defer s.rpc.Retire(ctx, id) // unless the entry hangs on it
		write = clientv3.OpPut(key, string(kv.Value), clientv3.WithLease(clientv3.LeaseID(id)))
	}
	resp, err := s.rpc.Txn(ctx, "end the reservation of "+l.CIDRs(), unchanged, []clientv3.Op{write}, nil)
	if err == nil && !resp.Succeeded {
		err = fmt.Errorf("end the reservation of %s: %w", l.CIDRs(), errMoved)
	}
	return l, deleted, err
}

// isTakenUp reports whether the node of a reservation lives, which the revision of its record says, and publishes
// the subnet. With the backend alloc an entry that is published looks like one that is not: the node's life counts alone.
func (s *Store) isTakenUp(ctx context.Context, l control.Lease, record int64) (bool, error) {
	if record == 0 || l.BackendType != "" {
		return record != 0, nil
	}
	n, err := s.Network(ctx)
	if errors.Is(err, control.ErrNoNetwork) {
		return false, nil
	}
	return n.Backend.Type == control.BackendAlloc, err
}

// revokedFor is how long the node that had a revoked subnet does not get it again. A node
// that has not seen its lease for as long has lost it anyway.
const revokedFor = 24 * time.Hour

// Revoke deletes the entry of a subnet, given as such or by its key, whoever has it and
// even if it is not a lease. An overlayd that runs takes that for the loss of its lease and acquires
// another; for revokedFor it does not get the same one, unless that is reserved
// for it: P/overlayd/revoked/<key> says so. A flanneld ends, and takes the same subnet
// again when it is started again.
func (s *Store) Revoke(ctx context.Context, name string) (key string, err error) {
	kv, err := s.find(ctx, name)
	if err != nil {
		return "", err
	}
	key = s.keys.Name(kv.Key)
	unchanged := clientv3.Compare(clientv3.ModRevision(string(kv.Key)), "=", kv.ModRevision)
	then := []clientv3.Op{clientv3.OpDelete(string(kv.Key))}
	if l, err := s.keys.Parse(kv); err == nil { // else nobody puts it back
		id := etcdrpc.NewLeaseID("")
		if _, err := s.rpc.Grant(ctx, id, revokedFor); err != nil {
			return key, err
		}
		defer s.rpc.Retire(ctx, id) // unless the mark hangs on it
		then = append(then, clientv3.OpPut(s.keys.Revoked(l), string(l.Value()), clientv3.WithLease(clientv3.LeaseID(id))))
	}
	resp, err := s.rpc.Txn(ctx, "revoke "+key, []clientv3.Cmp{unchanged}, then, nil)
	switch {
	case err != nil:
		return key, err
	case !resp.Succeeded:
		return key, fmt.Errorf("revoke %s: %w", key, errMoved)
	}
	s.rpc.Retire(ctx, leaseID(kv.Lease))
	return key, nil
}

// maxRevocations bounds how many revoked leases of a node are remembered.
const maxRevocations = 1000

// revocations returns the leases that were revoked within revokedFor and for which concerns returns true.
func (s *Store) revocations(ctx context.Context, concerns func(control.Lease) bool) ([]control.Lease, error) {
	prefix := s.keys.RevokedPrefix()
	var leases []control.Lease
	_, err := s.rpc.List(ctx, "list revoked leases", etcdrpc.PrefixRange(prefix), 0, func(kvs []*mvccpb.KeyValue) {
		for _, kv := range kvs {
			if l, err := control.ParseLease(string(kv.Key[len(prefix):]), kv.Value); err == nil && len(leases) < maxRevocations && concerns(l) {
				leases = append(leases, l)
			}
		}
	})
	return leases, err
}

// refuseRevoked is control.ErrLost if l was revoked. Else it returns the comparison that
// holds as long as that does not change.
func (s *Store) refuseRevoked(ctx context.Context, l control.Lease) (clientv3.Cmp, error) {
	key := s.keys.Revoked(l)
	got, err := s.rpc.Get(ctx, "look for a revocation", key)
	if err != nil {
		return clientv3.Cmp{}, err
	}
	s.mu.Lock()
	wentBack := s.wentBack
	s.mu.Unlock()
	var revision int64 // 0: no entry
	if len(got.Kvs) > 0 {
		revision = got.Kvs[0].ModRevision
		isNew := revision > l.ModRevision || wentBack != 0 && revision > wentBack // else a restore has brought it back
		if was, err := control.ParseLease(l.Key(), got.Kvs[0].Value); err == nil && was.SamePublicIP(l) && isNew {
			return clientv3.Cmp{}, fmt.Errorf("%w: it was revoked by an operator", control.ErrLost)
		}
	}
	return clientv3.Compare(clientv3.ModRevision(key), "=", revision), nil
}
