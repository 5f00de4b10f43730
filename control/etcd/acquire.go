package etcd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdkeys"
	"github.com/overlayd/overlayd/control/etcdrpc"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
)

const (
	raceDelay    = 10 * time.Millisecond // before the first retry of a lost race
	maxRaceDelay = time.Second
)

// raceBackoff returns the delays after lost races.
func raceBackoff() pace.Backoff { return pace.Backoff{Low: raceDelay, High: maxRaceDelay} }

// errRace says that a transaction did not find the values that it compares, or that it is
// unknown whether it took effect. The caller has to read and decide again.
var errRace = errors.New("somebody else was faster")

// acquisition is one run of Acquire.
type acquisition struct {
	*Store
	given  control.Node
	node   control.Node // given, with the public IPs of offer alone
	vteps  []dataplane.VTEP
	offer  control.Lease // what the node publishes; without subnets
	record *nodeRecord
	former []netip.Addr // public IPs that the node has had, and its record perhaps still has

	id      leaseID // of the etcd lease that the entry gets; 0: none yet
	expires time.Time
	inDoubt bool // the entry, perhaps one that pods use, may hang on id

	recordLease leaseID   // granted for the record; 0: none, or the record has it
	unfit       int       // how many leases were to be deleted
	retired     []leaseID // which may have nothing any more that hangs on them
}

// Acquire implements control.Store. It attaches the entry to a new etcd lease each
// time, which proves which acquisition wrote the entry. If an earlier process of this
// node still runs, it goes on: its next Renew takes the entry over with the new etcd
// lease, because the entry still says what that process wrote (see judge).
func (s *Store) Acquire(ctx context.Context, node control.Node, vteps []dataplane.VTEP) (control.Lease, error) {
	a := &acquisition{Store: s, given: node, vteps: vteps, former: node.Former}
	s.mu.Lock()
	s.lengths, s.inForce = node.Lengths, node.Network
	s.mu.Unlock()
	for again := raceBackoff(); ; {
		l, err := a.try(ctx)
		if err == nil && hasEnded(l) {
			err = rpctypes.ErrLeaseNotFound
		}
		switch {
		case err == nil:
			a.hold(l)
			a.tidy(ctx)
			return l, nil
		case errors.Is(err, control.ErrTaken):
			a.leave(ctx) // whoever has the address now may be waiting for the one that this node has left
			a.giveUp(ctx)
			return control.Lease{}, err
		case errors.Is(err, rpctypes.ErrLeaseNotFound): // this or the record's, in a long fight or by a wipe
			a.giveUp(ctx)
		case !errors.Is(err, errRace):
			a.fail(ctx)
			return control.Lease{}, err
		}
		if !pace.Sleep(ctx, again.Next(), nil) {
			a.fail(ctx)
			return control.Lease{}, fmt.Errorf("acquire lease: %w", ctx.Err())
		}
	}
}

// hasEnded reports whether l ended before etcd had answered all that was asked of it: its entry may be gone since, and with
// it the proof that no other overlaps it.
func hasEnded(l control.Lease) bool { return !l.Expires.IsZero() && !time.Now().Before(l.Expires) }

// fail gives up what the acquisition has got, as giveUp does, but no entry that it may have taken up: a daemon that ends, or that etcd does not
// answer, keeps the lease of its last run. An etcd lease on which nothing hangs does no harm until it expires.
func (a *acquisition) fail(ctx context.Context) {
	if a.inDoubt {
		a.id = 0
	}
	a.giveUp(ctx)
}

func (a *acquisition) giveUp(ctx context.Context) {
	for _, id := range [...]*leaseID{&a.id, &a.recordLease} {
		if *id != 0 {
			a.rpc.Abandon(ctx, *id)
		}
		*id = 0
	}
	a.inDoubt = false
}

// try goes once through what there is: a lease of this node, else its previous
// subnet, else a free one. errRace: try again.
func (a *acquisition) try(ctx context.Context) (control.Lease, error) {
	n, err := a.networkAndLeases(ctx)
	if err != nil {
		return control.Lease{}, err
	}
	if a.offer, err = n.Publish(a.given, a.vteps); err != nil {
		return control.Lease{}, err
	}
	a.node = a.given
	a.node.PublicIP, a.node.PublicIPv6 = a.offer.PublicIP, a.offer.PublicIPv6
	recordLease := a.recordLease
	a.recordLease = 0
	if a.record, err = a.claim(ctx, a.node, a.offer.Identity(), recordLease); err != nil {
		return control.Lease{}, err
	}
	c, err := a.census(ctx, n)
	if err != nil {
		return control.Lease{}, err
	}
	if l, ok, err := a.resume(ctx, n, c); ok || err != nil {
		return l, err
	}
	l := a.offer
	var taken []netip.Prefix
	taken, a.node.Avoid = n.Oversized(c.taken, a.node.Lengths)
	if l.Subnet, l.IPv6Subnet, err = control.Allocate(n, a.node, taken, rand.IntN); err != nil {
		return control.Lease{}, err
	}
	if l, err = a.put(ctx, l); err != nil {
		return control.Lease{}, err
	}
	return l, a.yield(ctx, l)
}

// yield deletes the new entry l if an older entry has a part of its subnets, and then returns
// errRace. A transaction excludes only another one for the same key. If two nodes choose at
// the same time, their keys may differ and their subnets overlap in one family. The node of
// the younger entry sees the older one here. Nobody has used the younger entry yet: see RIB.Peers.
func (a *acquisition) yield(ctx context.Context, l control.Lease) error {
	if !l.Subnet.IsValid() || !l.IPv6Subnet.IsValid() {
		return nil
	}
	older, err := a.standing(ctx, l, l.CreateRevision, taken)
	if err != nil || len(older) == 0 {
		return err
	}
	a.log.DebugContext(ctx, "lease yields to an older one", "subnet", l.CIDRs(), "older", a.keys.CIDRs(older))
	a.giveUp(ctx)
	return errRace
}

// cede does what yield does, for the entry of an earlier run that ended before it could yield: it was
// killed, or etcd did not answer. Pods have used the entry since, and so it cedes only to a lease. An entry that the
// node does not remember also cedes to a younger one, because a restore of etcd may have brought it back.
func (a *acquisition) cede(ctx context.Context, l control.Lease) error {
	if !l.Subnet.IsValid() || !l.IPv6Subnet.IsValid() || l.Handle == 0 {
		return nil
	}
	created := int64(math.MaxInt64)
	if a.hadBefore(l.Subnet) || a.hadBefore(l.IPv6Subnet) {
		created = l.CreateRevision
	}
	rivals, err := a.standing(ctx, l, created, held)
	if err != nil || len(rivals) == 0 {
		return err
	}
	a.log.WarnContext(ctx, "own lease yields to one that overlaps it", "subnet", l.CIDRs(), "other", a.keys.CIDRs(rivals))
	return a.discard(ctx, l)
}

// discard deletes an entry of this node. What was read is out of date then: errRace. The subnets are
// remembered: if one of them does not fit, the node can still get the other one again.
func (a *acquisition) discard(ctx context.Context, l control.Lease) error {
	if err := a.delete(ctx, l); err != nil {
		return err
	}
	a.rpc.Retire(ctx, leaseID(l.Handle))
	for _, p := range [...]netip.Prefix{l.Subnet, l.IPv6Subnet} {
		if p.IsValid() {
			a.given.Previous = append(slices.Clip(a.given.Previous), p)
		}
	}
	return errRace
}

// delete deletes an entry as it was read. errRace: it may be another now.
func (s *Store) delete(ctx context.Context, l control.Lease) error {
	key := s.keys.Lease(l)
	unchanged := clientv3.Compare(clientv3.ModRevision(key), "=", l.ModRevision)
	resp, err := s.rpc.Txn(ctx, "delete lease "+l.CIDRs(), []clientv3.Cmp{unchanged}, []clientv3.Op{clientv3.OpDelete(key)}, nil)
	if err != nil && etcdrpc.Ambiguous(err) && ctx.Err() == nil || err == nil && !resp.Succeeded {
		return errRace
	}
	return err
}

// goOn handles a lease l that etcd refused to write. If old, the entry of an earlier run of this node, says the
// same as l, the node goes on with the etcd lease of that run, and goOn returns l. The node recognises that etcd lease
// by its id, which has the tag of the node's ID in the node file.
func (a *acquisition) goOn(ctx context.Context, old, l control.Lease, refusal error) (control.Lease, error) {
	l.Handle = old.Handle
	wrote := l.Handle == 0 || leaseID(l.Handle).HasTag(etcdrpc.LeaseTag(a.node.ID))
	if !wrote || !etcdkeys.SameValue(old, l) {
		return control.Lease{}, refusal
	}
	l, err := a.renew(ctx, a.record, l)
	if err != nil {
		return control.Lease{}, errors.Join(refusal, err)
	}
	a.giveUp(ctx)
	a.logRefusal(ctx, "etcd refuses to write: going on with the lease of the last run as it is", refusal)
	return l, nil
}

// put writes l under this acquisition's etcd lease, while the conditions hold.
func (a *acquisition) put(ctx context.Context, l control.Lease, while ...clientv3.Cmp) (control.Lease, error) {
	if a.id == 0 {
		id := etcdrpc.NewLeaseID(a.node.ID)
		if err := a.grantEntry(ctx, id); err != nil {
			return control.Lease{}, err
		}
		a.id = id
	}
	l.Handle, l.Expires = int64(a.id), a.expires
	l, err := a.write(ctx, a.record, l, while...)
	a.inDoubt = a.inDoubt || err != nil && !etcdrpc.Refused(err)
	return l, err
}

// write puts l under the etcd lease l.Handle (0: under none), if the entry's revision still is
// l.ModRevision (0: the key is missing), and the record's fence and while hold. It returns l
// with its new revisions. errRace: read again, the entry may be written or not.
func (s *Store) write(ctx context.Context, r *nodeRecord, l control.Lease, while ...clientv3.Cmp) (control.Lease, error) {
	ifs, then, err := r.fence(ctx)
	if err != nil {
		return control.Lease{}, err
	}
	key := s.keys.Lease(l)
	ifs = append(append(ifs, while...), clientv3.Compare(clientv3.ModRevision(key), "=", l.ModRevision))
	then = append(then, clientv3.OpPut(key, string(l.Value()), clientv3.WithLease(clientv3.LeaseID(l.Handle))))
	resp, err := s.rpc.Txn(ctx, "write lease "+l.CIDRs(), ifs, then, nil)
	switch {
	case err != nil && etcdrpc.Ambiguous(err) && ctx.Err() == nil:
		s.log.DebugContext(ctx, "result of a transaction is not known: reading back", "subnet", l.CIDRs(), "err", err)
		return control.Lease{}, errRace
	case err != nil:
		return control.Lease{}, err
	case !resp.Succeeded:
		return control.Lease{}, errRace
	}
	if l.ModRevision == 0 {
		l.CreateRevision = resp.Header.Revision
	}
	l.ModRevision = resp.Header.Revision
	return l, nil
}
