package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// Renew implements control.Store. It extends the etcd lease and makes sure that the
// entry hangs on it. An entry that is gone, or spoilt by what is no lease, is put
// back; so is everything after a loss of etcd's data. An entry that is somebody
// else's is left alone: control.ErrLost. A lease becomes a reservation, or a reservation
// a lease, as soon as the entry is one.
func (s *Store) Renew(ctx context.Context, l control.Lease) (control.Lease, error) {
	what := "renew lease " + l.Key()
	r := s.record()
	for again := raceBackoff(); ; {
		if r != nil {
			if err := r.claim(ctx); errors.Is(err, control.ErrTaken) {
				return control.Lease{}, fmt.Errorf("%s: %w: %v", what, control.ErrLost, err)
			} else if err != nil {
				return control.Lease{}, fmt.Errorf("%s: %w", what, err)
			}
		}
		renewed, err := s.renew(ctx, r, l)
		switch {
		case err == nil:
			return renewed, nil
		case !errors.Is(err, errRace):
			return control.Lease{}, fmt.Errorf("%s: %w", what, err)
		}
		if !pace.Sleep(ctx, again.Next(), nil) {
			return control.Lease{}, fmt.Errorf("%s: %w", what, ctx.Err())
		}
	}
}

func (s *Store) renew(ctx context.Context, r *nodeRecord, l control.Lease) (control.Lease, error) {
	expires, alive := time.Time{}, false
	if l.Handle != 0 {
		var err error
		expires, err = s.refresh(ctx, leaseID(l.Handle))
		if alive = err == nil; err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return control.Lease{}, err
		}
	}
	got, err := s.get(ctx, "read own lease", s.keys.lease(l))
	if err != nil {
		return control.Lease{}, err
	}
	if len(got.Kvs) == 0 {
		return s.putBack(ctx, r, l, alive)
	}
	kv := got.Kvs[0]
	state, entry := s.judge(kv, l, r != nil)
	switch state {
	case stateOwn:
		if alive {
			l.CreateRevision, l.ModRevision, l.Expires = kv.CreateRevision, kv.ModRevision, expires
			return l, nil
		}
		return control.Lease{}, errRace // it expired between the two calls
	case stateOutdated:
		if alive {
			l.Expires = expires
			return s.write(ctx, r, l)
		}
		return control.Lease{}, errRace
	case stateReserved:
		return s.reserve(ctx, r, l, entry)
	case stateRelated:
		if l.Handle == 0 {
			return s.unreserved(ctx, r, l, entry)
		}
		if expires, err := s.refresh(ctx, leaseID(kv.Lease)); err == nil {
			entry.Expires = expires
			s.retire(ctx, leaseID(l.Handle))
			return entry, nil
		}
		fallthrough
	case stateSpoilt:
		l.CreateRevision, l.ModRevision = kv.CreateRevision, kv.ModRevision
		return s.restore(ctx, r, l, alive)
	}
	return control.Lease{}, fmt.Errorf("%w: it is held by %s", control.ErrLost, holder(entry))
}

// reserve makes l the reservation that its entry is.
func (s *Store) reserve(ctx context.Context, r *nodeRecord, l, entry control.Lease) (control.Lease, error) {
	before := leaseID(l.Handle)
	l.Handle, l.Expires, l.CreateRevision, l.ModRevision = 0, time.Time{}, entry.CreateRevision, entry.ModRevision
	if !sameValue(entry, l) {
		var err error
		if l, err = s.write(ctx, r, l); err != nil {
			return control.Lease{}, err
		}
	}
	s.retire(ctx, before)
	return l, nil
}

// unreserved makes the reservation l the lease that its entry is, with this node's own
// TTL, which the operator who ended the reservation does not know.
func (s *Store) unreserved(ctx context.Context, r *nodeRecord, l, entry control.Lease) (control.Lease, error) {
	l.Handle, l.CreateRevision, l.ModRevision = int64(newLeaseID(r.id())), entry.CreateRevision, entry.ModRevision
	defer s.retire(ctx, leaseID(l.Handle)) // unless the entry hangs on it
	var err error
	if l.Expires, err = s.grant(ctx, leaseID(l.Handle), s.cfg.LeaseTTL); err != nil {
		return control.Lease{}, err
	}
	if l, err = s.write(ctx, r, l); err != nil {
		return control.Lease{}, err
	}
	s.retire(ctx, leaseID(entry.Handle))
	return l, nil
}

// entryState is what an entry under the key of our lease is to us.
type entryState int

const (
	stateForeign  entryState = iota // another node's
	stateOwn                        // hangs on our etcd lease and says what we wrote
	stateReserved                   // a reservation for our public IP
	stateRelated                    // says what we wrote, under an etcd lease that is ours but not known: see judge
	stateOutdated                   // says what we wrote last, and we want to say something else
	stateSpoilt                     // overwritten by what gives nobody a right
)

// judge decides whose an entry is. claimed says that this node's record is its
// own, so that no other live overlayd publishes this address: an entry that says what
// we wrote is then ours though its etcd lease is another, as it is when etcd was
// restored from a backup, or when the reply to an earlier Renew was lost. What cannot be
// read belongs to nobody, unless it is a new entry with an etcd lease of its own.
func (s *Store) judge(kv *mvccpb.KeyValue, l control.Lease, claimed bool) (entryState, control.Lease) {
	entry, err := s.keys.parse(kv)
	reserved, ours := kv.Lease == 0, kv.Lease == l.Handle
	switch {
	case err != nil && (ours || kv.CreateRevision == l.CreateRevision || reserved): // by hand, as a daemon's write has an etcd lease
		return stateSpoilt, entry
	case err != nil:
		return stateForeign, entry
	case reserved && entry.SamePublicIP(l):
		return stateReserved, entry
	case reserved:
		return stateForeign, entry
	case ours && sameValue(entry, l):
		return stateOwn, entry
	case ours && kv.ModRevision == l.ModRevision:
		return stateOutdated, entry
	case ours:
		return stateSpoilt, entry
	case claimed && sameValue(entry, l):
		return stateRelated, entry
	}
	return stateForeign, entry
}

// holder names who has an entry, for a message.
func holder(l control.Lease) string {
	if ip := l.Identity(); ip.IsValid() {
		return ip.String()
	}
	return "an entry that cannot be read"
}

// putBack writes an entry that is gone, unless it was revoked or another one has come to
// hold a part of it (control.AppendHeld).
func (s *Store) putBack(ctx context.Context, r *nodeRecord, l control.Lease, alive bool) (control.Lease, error) {
	notRevoked, err := s.refuseRevoked(ctx, l)
	if err != nil {
		return control.Lease{}, err
	}
	l.CreateRevision, l.ModRevision = 0, 0
	if err := s.lost(ctx, l); err != nil {
		return control.Lease{}, err
	}
	l, err = s.restore(ctx, r, l, alive, notRevoked)
	if err != nil || !l.Subnet.IsValid() || !l.IPv6Subnet.IsValid() {
		return l, err
	}
	if err := s.lost(ctx, l); err != nil { // see yield
		s.abandon(ctx, leaseID(l.Handle))
		return control.Lease{}, err
	}
	return l, nil
}

// lost says whether another entry holds a part of l, which was not in the store.
func (s *Store) lost(ctx context.Context, l control.Lease) error {
	keys, err := s.rivals(ctx, l, control.AppendHeld)
	switch {
	case err != nil || len(keys) == 0:
		return err
	case slices.Contains(keys, l.Key()):
		return errRace
	}
	return fmt.Errorf("%w: %s overlaps it", control.ErrLost, keys[0])
}

// restore writes the entry over the revision l.ModRevision of it, under its etcd
// lease if that is alive and else under a new one, while the conditions hold. A reservation
// stays one unless it is gone.
func (s *Store) restore(ctx context.Context, r *nodeRecord, l control.Lease, alive bool, while ...clientv3.Cmp) (control.Lease, error) {
	var err error
	if l.Handle == 0 && l.ModRevision != 0 {
		alive = true
	} else if alive {
		l.Expires, err = s.refresh(ctx, leaseID(l.Handle))
	} else {
		l.Handle = int64(newLeaseID(r.id()))
		l.Expires, err = s.grant(ctx, leaseID(l.Handle), s.cfg.LeaseTTL)
	}
	if err == nil {
		var written control.Lease
		if written, err = s.write(ctx, r, l, while...); err == nil {
			s.log.WarnContext(ctx, "own lease was missing or overwritten: restored", "subnet", l.CIDRs())
			return written, nil
		}
	}
	if !alive {
		s.retire(ctx, leaseID(l.Handle))
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		err = errRace // it, or the record's, expired between two calls
	}
	return control.Lease{}, err
}

// Release implements control.Store. It deletes the entry if it is still ours, and
// withdraws this node's sign of life. The etcd lease goes with it unless something else
// hangs on that too, which an operator can make so: two nodes' entries, for one. Of a
// reservation the entry stays, without what peers need to send to the node.
func (s *Store) Release(ctx context.Context, l control.Lease) error {
	s.unclaim(ctx)
	key := s.keys.lease(l)
	ours := []clientv3.Cmp{clientv3.Compare(clientv3.LeaseValue(key), "=", l.Handle)}
	give := clientv3.OpDelete(key)
	if l.Handle == 0 { // as that of any key without a TTL, and of none
		ours = append(ours, clientv3.Compare(clientv3.Value(key), "=", string(l.Value())))
		give = clientv3.OpPut(key, string(l.Reservation().Value()))
	}
	if _, err := s.txn(ctx, "release lease "+l.Key(), ours, []clientv3.Op{give}, nil); err != nil {
		return err
	}
	s.retire(ctx, leaseID(l.Handle))
	return nil
}
