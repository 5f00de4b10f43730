package etcd

import (
	"context"
	"errors"
	"math"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdrpc"
)

// putBack writes an entry that is gone, unless it was revoked or another one has come to
// hold a part of it.
func (s *Store) putBack(ctx context.Context, r *nodeRecord, l control.Lease, alive bool) (control.Lease, error) {
	notRevoked, err := s.refuseRevoked(ctx, l)
	if err != nil {
		return control.Lease{}, err
	}
	if err := s.clear(ctx, l); err != nil {
		return control.Lease{}, err
	}
	l.CreateRevision, l.ModRevision = 0, 0
	return s.logRestored(ctx)(s.restore(ctx, r, l, alive, notRevoked))
}

// mend writes an entry that is spoilt. What spoils it may keep nobody from its subnets, so that another entry may have
// come to hold one of two; one is held by its key.
func (s *Store) mend(ctx context.Context, r *nodeRecord, l control.Lease, kv *mvccpb.KeyValue, alive bool) (control.Lease, error) {
	if l.Subnet.IsValid() && l.IPv6Subnet.IsValid() {
		if err := s.clear(ctx, l); err != nil {
			return control.Lease{}, err
		}
	}
	l.CreateRevision, l.ModRevision = kv.CreateRevision, kv.ModRevision
	return s.logRestored(ctx)(s.restore(ctx, r, l, alive))
}

func (s *Store) logRestored(ctx context.Context) func(control.Lease, error) (control.Lease, error) {
	return func(l control.Lease, err error) (control.Lease, error) {
		if err == nil {
			s.log.WarnContext(ctx, "own lease was missing or overwritten: restored", "subnet", l.CIDRs())
		}
		return l, err
	}
}

// clear is nil if no other entry holds a part of l, whose own entry gives it no right, or once those that do, of
// former holders, are deleted.
func (s *Store) clear(ctx context.Context, l control.Lease) error {
	rivals, _, err := s.rivals(ctx, l, math.MaxInt64, claimed)
	if err != nil {
		return err
	}
	return s.evictAll(ctx, l, rivals)
}

// confirm is clear for a lease whose entry stands, after a restore of etcd gave it another revision or went back: other
// entries may be back with it that hold a part of it.
func (s *Store) confirm(ctx context.Context, l control.Lease) error {
	if !l.Subnet.IsValid() || !l.IPv6Subnet.IsValid() || l.Handle == 0 {
		return nil // one subnet is held by its key
	}
	rivals, err := s.standing(ctx, l, l.CreateRevision, claimed)
	if err != nil {
		return err
	}
	return s.evictAll(ctx, l, rivals)
}

// evictAll deletes the entries of former holders. control.ErrLost: one of rivals is not of such.
func (s *Store) evictAll(ctx context.Context, l control.Lease, rivals []*mvccpb.KeyValue) error {
	for _, kv := range rivals {
		entry, _ := s.keys.Parse(kv) // one that cannot be read holds it, too
		if !isGhost(kv, l) {
			return lostTo(l, entry)
		}
		if err := s.evict(ctx, l, entry); err != nil {
			return err
		}
	}
	return nil
}

// restore writes the entry over the revision l.ModRevision of it, under its etcd
// lease if that is alive until l.Expires and else under a new one, while the conditions hold. A reservation
// stays one unless it is gone.
func (s *Store) restore(ctx context.Context, r *nodeRecord, l control.Lease, alive bool, while ...clientv3.Cmp) (control.Lease, error) {
	var err error
	if l.Handle == 0 && l.ModRevision != 0 {
		alive = true
	} else if !alive {
		l.Handle = int64(etcdrpc.NewLeaseID(r.id()))
		l.Expires, err = s.rpc.Grant(ctx, leaseID(l.Handle), s.cfg.LeaseTTL)
	}
	if err == nil {
		var written control.Lease
		if written, err = s.write(ctx, r, l, while...); err == nil {
			return written, s.recheck(ctx, written)
		}
	}
	if !alive {
		s.rpc.Retire(ctx, leaseID(l.Handle))
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		err = errRace // it, or the record's, expired between two calls
	}
	return control.Lease{}, err
}

// recheck takes l, which was just written, back if an older entry has a part of it: see yield.
func (s *Store) recheck(ctx context.Context, l control.Lease) error {
	if !l.Subnet.IsValid() || !l.IPv6Subnet.IsValid() || l.Handle == 0 {
		return nil
	}
	rivals, err := s.standing(ctx, l, l.ModRevision, claimed)
	if err != nil || len(rivals) == 0 {
		return err
	}
	_ = s.delete(ctx, l) // if it stays, it is the younger one, and nobody uses it
	s.rpc.Retire(ctx, leaseID(l.Handle))
	entry, _ := s.keys.Parse(rivals[0])
	return lostTo(l, entry)
}
