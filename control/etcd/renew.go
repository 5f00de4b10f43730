package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdkeys"
	"github.com/overlayd/overlayd/control/etcdrpc"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// Renew implements control.Store. It extends the etcd lease, and then reads whether the entry is attached
// to it and has the right value. Only that proves the right to the subnet, for as long as etcd
// keeps the extended lease. If everything is right, it writes nothing. If the entry is gone, or
// overwritten by junk, it writes it again; so it does with everything after a loss of etcd's
// data. If etcd refuses that, the error is control.ErrGone. If the entry belongs to another node, Renew leaves
// it alone, and the error is control.ErrLost. When the entry becomes a reservation, or a lease again, so does l.
func (s *Store) Renew(ctx context.Context, l control.Lease) (control.Lease, error) {
	what := "renew lease " + l.CIDRs()
	r := s.record()
	for again := raceBackoff(); ; {
		renewed, err := s.renew(ctx, r, l)
		if err == nil && hasEnded(renewed) {
			err = errLate
		}
		switch {
		case err == nil:
			s.hold(renewed)
			return renewed, nil
		case errors.Is(err, control.ErrTaken):
			err = fmt.Errorf("%w: %v", control.ErrLost, err)
		}
		if errors.Is(err, control.ErrLost) {
			s.hold(control.Lease{})
		}
		if !errors.Is(err, errRace) {
			return control.Lease{}, fmt.Errorf("%s: %w", what, err)
		}
		if !pace.Sleep(ctx, again.Next(), nil) {
			return control.Lease{}, fmt.Errorf("%s: %w", what, ctx.Err())
		}
	}
}

// errLate is the error of a renewal for which etcd took longer than the lease lasts.
var errLate = errors.New("etcd answered only after the lease had ended")

func (s *Store) renew(ctx context.Context, r *nodeRecord, l control.Lease) (control.Lease, error) {
	alive := false
	if l.Handle != 0 {
		expires, err := s.rpc.Refresh(ctx, leaseID(l.Handle))
		if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return control.Lease{}, err
		}
		if alive = err == nil; alive {
			l.Expires = expires
		}
	}
	kv, err := s.readOwn(ctx, r, l)
	if err != nil {
		return control.Lease{}, err
	}
	if kv == nil {
		l, err = s.putBack(ctx, r, l, alive)
		return l, gone(err)
	}
	state, entry := s.judge(kv, l, r != nil)
	switch state {
	case stateOwn, stateOutdated:
		if !alive {
			return control.Lease{}, errRace // it expired between the two calls
		}
		return s.goesOn(ctx, r, l, kv, state)
	case stateReserved:
		return s.reserve(ctx, r, l, entry)
	case stateRelated:
		if l.Handle == 0 {
			return s.unreserved(ctx, r, l, entry)
		}
		if expires, err := s.rpc.Refresh(ctx, leaseID(kv.Lease)); err == nil {
			entry.Expires, entry.Facts = expires, l.Facts
			if err := s.recheck(ctx, entry); err != nil { // it may be that of a write whose reply was lost, and with it what follows
				return control.Lease{}, err
			}
			s.rpc.Retire(ctx, leaseID(l.Handle))
			return entry, nil
		}
		fallthrough
	case stateSpoilt:
		l, err = s.mend(ctx, r, l, kv, alive)
		return l, gone(err)
	}
	if !isGhost(kv, l) {
		return control.Lease{}, lostTo(l, entry)
	}
	l, err = s.takeBack(ctx, r, l, entry, alive)
	return l, gone(err)
}

// goesOn returns l, whose entry stands, with its revisions, and makes the entry say what it should.
func (s *Store) goesOn(ctx context.Context, r *nodeRecord, l control.Lease, kv *mvccpb.KeyValue, state entryState) (control.Lease, error) {
	restored := kv.ModRevision != l.ModRevision || s.hasGoneBack()
	l.CreateRevision, l.ModRevision = kv.CreateRevision, kv.ModRevision
	if restored {
		if err := s.confirm(ctx, l); err != nil {
			return control.Lease{}, err
		}
	}
	if state == stateOutdated {
		return s.write(ctx, r, l)
	}
	return l, nil
}

// gone is the error of an entry that does not stand in etcd: control.ErrGone if etcd refused to write it.
func gone(err error) error {
	if etcdrpc.Refused(err) {
		return fmt.Errorf("%w: %w", control.ErrGone, err)
	}
	return err
}

// readOwn reads the entry of l and makes sure that the record is r's. Without an entry it returns nil.
func (s *Store) readOwn(ctx context.Context, r *nodeRecord, l control.Lease) (entry *mvccpb.KeyValue, err error) {
	reads := []clientv3.Op{clientv3.OpGet(s.keys.Lease(l))}
	if r != nil {
		reads = append(reads, clientv3.OpGet(r.key))
	}
	resp, err := s.rpc.Txn(ctx, "read own lease", nil, reads, nil)
	if err != nil {
		return nil, err
	}
	first := func(i int) *mvccpb.KeyValue {
		if kvs := resp.Responses[i].GetResponseRange().Kvs; len(kvs) > 0 {
			return kvs[0]
		}
		return nil
	}
	if r != nil {
		entry := first(0)
		holds := s.holds() && (entry == nil || entry.Lease == 0 || entry.Lease == l.Handle) // else another has written it
		wrote, err := r.prove(ctx, first(1), holds)
		if err != nil {
			return nil, err
		}
		if wrote {
			return nil, errRace // while there was no record, a clone may have taken the entry that was read with it
		}
	}
	return first(0), nil
}

// reserve makes l the reservation that its entry is.
func (s *Store) reserve(ctx context.Context, r *nodeRecord, l, entry control.Lease) (control.Lease, error) {
	before := leaseID(l.Handle)
	l.Handle, l.Expires, l.CreateRevision, l.ModRevision = 0, time.Time{}, entry.CreateRevision, entry.ModRevision
	if !etcdkeys.SameValue(entry, l) {
		var err error
		if l, err = s.write(ctx, r, l); err != nil {
			return control.Lease{}, err
		}
	}
	s.rpc.Retire(ctx, before)
	return l, nil
}

// unreserved turns the reservation l into a lease, as its entry has become one. The lease gets this node's own
// TTL, which the operator who ended the reservation does not know.
func (s *Store) unreserved(ctx context.Context, r *nodeRecord, l, entry control.Lease) (control.Lease, error) {
	l.Handle, l.CreateRevision, l.ModRevision = int64(etcdrpc.NewLeaseID(r.id())), entry.CreateRevision, entry.ModRevision
	defer s.rpc.Retire(ctx, leaseID(l.Handle)) // unless the entry hangs on it
	var err error
	if l.Expires, err = s.rpc.Grant(ctx, leaseID(l.Handle), s.cfg.LeaseTTL); err != nil {
		return control.Lease{}, err
	}
	if l, err = s.write(ctx, r, l); err != nil {
		return control.Lease{}, err
	}
	s.rpc.Retire(ctx, leaseID(entry.Handle))
	return l, nil
}

// Release implements control.Store. It deletes the entry if it is still ours, and
// withdraws this node's sign of life. It also ends the etcd lease, unless an operator has attached
// something else to it, for example another node's entry. The entry of a
// reservation stays, without the data that peers need to send to the node.
func (s *Store) Release(ctx context.Context, l control.Lease) error {
	s.unclaim(ctx)
	s.hold(control.Lease{})
	key := s.keys.Lease(l)
	ours := []clientv3.Cmp{clientv3.Compare(clientv3.LeaseValue(key), "=", l.Handle)}
	give := clientv3.OpDelete(key)
	if l.Handle == 0 { // as that of any key without a TTL, and of none
		ours = append(ours, clientv3.Compare(clientv3.Value(key), "=", string(l.Value())))
		give = clientv3.OpPut(key, string(l.Reservation().Value()))
	}
	if _, err := s.rpc.Txn(ctx, "release lease "+l.CIDRs(), ours, []clientv3.Op{give}, nil); err != nil {
		return err
	}
	s.rpc.Retire(ctx, leaseID(l.Handle))
	return nil
}
