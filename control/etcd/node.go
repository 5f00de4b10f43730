package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/semaphore"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdkeys"
	"github.com/overlayd/overlayd/control/etcdrpc"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// nodeRecord is this node's sign of life: P/overlayd/nodes/<public IP>, attached to an
// etcd lease that lasts Config.NodeTTL and is kept alive.
type nodeRecord struct {
	store    *Store
	key      string
	publicIP netip.Addr
	node     etcdkeys.Record
	others   map[string]json.RawMessage // fields of the node's earlier record that this version does not know

	stop  context.CancelFunc // ends keep
	done  chan struct{}      // closed when keep has returned
	ended atomic.Bool        // it is withdrawn: nobody writes it again

	look  chan struct{}                   // has room for one: there is a reason for a check
	seen  atomic.Pointer[mvccpb.KeyValue] // the record as the watch has shown it; nil: it was checked
	asked atomic.Int64                    // revision of the last question of a clone

	// The next two are keep's.
	doubt    bool  // the last check failed
	answered int64 // asked, as answered last

	turn     *semaphore.Weighted // of the fields below
	lease    leaseID             // 0: none
	revision int64               // ModRevision of the key when it was last seen to be ours
	replaced leaseID             // of the record that this one has replaced, until it is retired
	refusal  error               // etcd did not let us write it: it may be missing, or that of an earlier run
}

// claim makes sure that the record of node under ip is this process's, and keeps it alive
// from then on. control.ErrTaken: another live node has it. An earlier process of
// the same node loses it. lease was granted for a new record; 0: none was.
func (s *Store) claim(ctx context.Context, node control.Node, ip netip.Addr, lease leaseID) (*nodeRecord, error) {
	spare := lease
	defer func() {
		if spare != 0 {
			s.rpc.Abandon(ctx, spare)
		}
	}()
	if node.ID == "" {
		return nil, errors.New("node ID is empty")
	}
	if err := s.claims.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer s.claims.Release(1)
	if s.isClosing() {
		return nil, etcdrpc.ErrClosed
	}
	want := etcdkeys.RecordOf(node)
	if r := s.record(); r != nil {
		if r.publicIP == ip && r.node == want {
			return r, r.claimOrAdopt(ctx)
		}
		s.unclaim(ctx)
	}
	r := &nodeRecord{store: s, key: s.keys.Node(ip), publicIP: ip, node: want, look: make(chan struct{}, 1), turn: semaphore.NewWeighted(1)}
	var err error
	if !r.succeed(ctx, node.Handed) {
		r.lease, spare = lease, 0
		err = r.claimOrAdopt(ctx)
	}
	if err == nil {
		err = s.start(ctx, r)
	}
	if err != nil {
		r.forget(ctx)
		return nil, err
	}
	return r, nil
}

// start makes r the Store's record and keeps it alive, unless the Store is being closed.
func (s *Store) start(ctx context.Context, r *nodeRecord) error {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.stop, r.done = stop, make(chan struct{})
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		stop()
		return etcdrpc.ErrClosed
	}
	early := s.early
	s.node, s.early = r, nil
	s.mu.Unlock()
	go r.keep(ctx) // unclaim waits for it
	s.sawEarly(ctx, r, early)
	return nil
}

// record returns this node's record: nil before Acquire and after Release.
func (s *Store) record() *nodeRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

// unclaim withdraws the record, if there is one, and waits for its keeper.
func (s *Store) unclaim(ctx context.Context) {
	s.mu.Lock()
	r := s.node
	s.node = nil
	s.mu.Unlock()
	if r == nil {
		return
	}
	r.stop()
	<-r.done
	if !s.isBequeathed() {
		r.end(ctx)
	}
}

// errWithdrawn is the error of a claim of a record that this process has withdrawn.
var errWithdrawn = errors.New("this node's record is withdrawn")

// end withdraws the record for good. A claim that runs takes back what it has written.
func (r *nodeRecord) end(ctx context.Context) {
	r.ended.Store(true)
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), etcdrpc.CloseTimeout)
	defer cancel()
	if r.turn.Acquire(wait, 1) == nil { // else the claim that has the turn sees that the record has ended
		defer r.turn.Release(1)
		r.forget(ctx)
	}
}

// claimOrAdopt is claim, or adopt if etcd does not write.
func (r *nodeRecord) claimOrAdopt(ctx context.Context) error {
	err := r.claim(ctx)
	if etcdrpc.Refused(err) {
		err = r.adopt(ctx)
	}
	return err
}

// claim writes the record, or finds it written.
func (r *nodeRecord) claim(ctx context.Context) error {
	if err := r.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer r.turn.Release(1)
	return r.claimInTurn(ctx)
}

func (r *nodeRecord) claimInTurn(ctx context.Context) (err error) {
	if r.ended.Load() {
		return errWithdrawn
	}
	defer func() {
		if r.refusal = nil; etcdrpc.Refused(err) {
			r.refusal = err
		}
		if r.ended.Load() {
			r.forget(ctx)
			err = errWithdrawn
		}
	}()
	again := raceBackoff()
	for try := 0; ; try++ {
		err := r.write(ctx)
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound) && try < 3: // etcd was away for longer than the TTL, or wiped
			r.lease = 0
		case errors.Is(err, errRace):
			if !pace.Sleep(ctx, again.Next(), nil) {
				return ctx.Err()
			}
		case errors.Is(err, control.ErrTaken):
			r.forget(ctx)
			return err
		default:
			return err
		}
	}
}

func (r *nodeRecord) write(ctx context.Context) error {
	if r.lease == 0 {
		id := etcdrpc.NewLeaseID(r.node.ID)
		if err := r.store.grantRecord(ctx, id); err != nil {
			return err
		}
		r.lease = id
	}
	absent := clientv3.Compare(clientv3.CreateRevision(r.key), "=", 0)
	resp, err := r.store.rpc.Txn(ctx, "write node record", []clientv3.Cmp{absent}, []clientv3.Op{r.put()}, []clientv3.Op{clientv3.OpGet(r.key)})
	if err != nil {
		return err
	}
	if resp.Succeeded {
		r.revision = resp.Header.Revision
		return nil
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 { // etcd says that the record is there, and that it is not
		return fmt.Errorf("write node record: etcd at %s gave a malformed answer: it lacks the record", r.store.rpc.Endpoints())
	}
	kv := kvs[0]
	if leaseID(kv.Lease) == r.lease && r.refusal == nil {
		r.revision = kv.ModRevision
		return nil
	}
	return r.takeOver(ctx, kv)
}

// refusesRecord is the log line of a record that cannot be written. It costs no lease.
const refusesRecord = "etcd refuses to write the node record: the lease is kept alive as it is"

// adopt goes on with the record as an earlier run of this node left it, or without one, until etcd lets us write.
func (r *nodeRecord) adopt(ctx context.Context) error {
	got, err := r.store.rpc.Get(ctx, "read node record", r.key)
	if err != nil || len(got.Kvs) == 0 {
		return err
	}
	if err := r.checkOwner(ctx, got.Kvs[0], r.store.holds()); err != nil {
		return err
	}
	if err := r.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer r.turn.Release(1)
	r.lease, r.revision = leaseID(got.Kvs[0].Lease), got.Kvs[0].ModRevision
	return nil
}

// checkOwner returns control.ErrTaken for a record that is the sign of life of another node. With holds this node has a lease, and no
// other node has its entry. Then the error is another one until somebody is seen to keep the record alive.
func (r *nodeRecord) checkOwner(ctx context.Context, kv *mvccpb.KeyValue, holds bool) error {
	other, isOther := otherNode(kv, r.node.ID)
	original, isClone := r.node.OriginalOf(kv)
	if !isOther && !isClone {
		return nil
	}
	p, stays, err := r.store.pulseOf(ctx, kv, holds)
	switch {
	case err != nil:
		return err
	case p == dead:
		return nil
	case p == unsure && holds:
		return r.notYet(other.Name)
	case isClone:
		return r.checkClone(ctx, kv, original, stays)
	}
	return fmt.Errorf("%w: %s belongs to host %.64q (node ID %.64q): give one of the two another public IP, or wait %s if that host is gone",
		control.ErrTaken, r.publicIP, other.Name, other.ID, stays)
}

// prove makes sure that kv, which was just read, is this process's record; nil means that no record exists. Otherwise it writes
// the record, and wrote is true. checkOwner explains holds. A refusal to write is logged, and is not an error: what needs the record fails by its fence.
func (r *nodeRecord) prove(ctx context.Context, kv *mvccpb.KeyValue, holds bool) (wrote bool, err error) {
	if err := r.turn.Acquire(ctx, 1); err != nil {
		return false, err
	}
	ours := kv != nil && leaseID(kv.Lease) == r.lease && r.refusal == nil
	if ours {
		r.revision = kv.ModRevision
	}
	r.turn.Release(1)
	if ours {
		return false, nil
	}
	if kv != nil {
		if err := r.checkOwner(ctx, kv, holds); err != nil {
			return false, err
		}
	}
	err = r.claim(ctx)
	if etcdrpc.Refused(err) {
		r.store.logRefusal(ctx, refusesRecord, err)
		return false, nil
	}
	return err == nil, err
}

// takeOver replaces a record unless it is the sign of life of another node.
func (r *nodeRecord) takeOver(ctx context.Context, kv *mvccpb.KeyValue) error {
	if err := r.checkOwner(ctx, kv, r.store.holds()); err != nil {
		return err
	}
	if was, ok := etcdkeys.ParseRecord(kv.Value); ok && was.ID == r.node.ID {
		r.others = etcdkeys.UnknownFields(kv.Value)
	}
	unchanged := clientv3.Compare(clientv3.ModRevision(r.key), "=", kv.ModRevision)
	resp, err := r.store.rpc.Txn(ctx, "take over node record", []clientv3.Cmp{unchanged}, []clientv3.Op{r.put()}, nil)
	switch {
	case err != nil:
		return err
	case !resp.Succeeded:
		return errRace
	}
	r.revision, r.replaced = resp.Header.Revision, leaseID(kv.Lease)
	return nil
}

// retire revokes the etcd lease of the record that this one has replaced.
func (r *nodeRecord) retire(ctx context.Context) {
	if r.turn.Acquire(ctx, 1) != nil {
		return
	}
	id := r.replaced
	r.replaced = 0
	r.turn.Release(1)
	r.store.rpc.Retire(ctx, id)
}

// grantRecord grants an etcd lease for a record.
func (s *Store) grantRecord(ctx context.Context, id leaseID) error {
	_, err := s.rpc.Grant(ctx, id, s.cfg.NodeTTL)
	if err != nil {
		s.rpc.Abandon(ctx, id)
	}
	return err
}

// otherNode returns the node whose record kv is. isOther is false for the node with this id, and for what has no etcd lease. pulseOf
// tells whether somebody keeps the record alive.
func otherNode(kv *mvccpb.KeyValue, id string) (n etcdkeys.Record, isOther bool) {
	n, ok := etcdkeys.ParseRecord(kv.Value)
	return n, ok && n.ID != id && kv.Lease != 0 // one without a lease would be alive for ever
}

func (r *nodeRecord) put() clientv3.Op {
	return clientv3.OpPut(r.key, r.node.Value(r.others), clientv3.WithLease(clientv3.LeaseID(r.lease)))
}

// id is the node's. A nil record has none.
func (r *nodeRecord) id() string {
	if r == nil {
		return ""
	}
	return r.node.ID
}

// forget revokes the record's etcd lease, and with it deletes the record if it is ours.
func (r *nodeRecord) forget(ctx context.Context) {
	if r.lease != 0 {
		r.store.rpc.Abandon(ctx, r.lease)
	}
	r.lease, r.revision = 0, unfenced
}

// fence returns the comparison and the write that make a transaction exclude every
// other of this node: of two, one does not find the revision that it compares. A nil
// record, that of a Store that has acquired nothing, fences nothing.
func (r *nodeRecord) fence(ctx context.Context) (ifs []clientv3.Cmp, then []clientv3.Op, err error) {
	if r == nil {
		return nil, nil, nil
	}
	if err := r.turn.Acquire(ctx, 1); err != nil {
		return nil, nil, err
	}
	defer r.turn.Release(1)
	if r.refusal != nil {
		return nil, nil, r.refusal
	}
	return []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(r.key), "=", r.revision)}, []clientv3.Op{r.put()}, nil
}
