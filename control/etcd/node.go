package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// nodeRecord is this node's sign of life: P/overlayd/nodes/<public IP>, attached to an
// etcd lease that lasts Config.NodeTTL and is kept alive.
type nodeRecord struct {
	store    *Store
	key      string
	publicIP netip.Addr
	node     nodeJSON
	others   map[string]json.RawMessage // fields of the node's earlier record that this version does not know

	stop context.CancelFunc // ends keep
	done chan struct{}      // closed when keep has returned

	turn     turn    // of the fields below
	lease    leaseID // 0: none
	revision int64   // ModRevision of the key when it was last seen to be ours
}

// turn is a mutex that can be held over calls, because waiting for it ends with a
// context. It holds a token while it is free.
type turn chan struct{}

func newTurn() turn {
	t := make(turn, 1)
	t.unlock()
	return t
}

func (t turn) lock(ctx context.Context) error {
	select {
	case <-t:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t turn) unlock() { t <- struct{}{} }

// claim makes sure that the record of node under ip is this process's, and keeps it alive
// from then on. control.ErrTaken: another live node has it. An earlier process of
// the same node loses it.
func (s *Store) claim(ctx context.Context, node control.Node, ip netip.Addr) (*nodeRecord, error) {
	if node.ID == "" {
		return nil, errors.New("node ID is empty")
	}
	if err := s.claims.lock(ctx); err != nil {
		return nil, err
	}
	defer s.claims.unlock()
	if s.isClosing() {
		return nil, errClosed
	}
	want := recordOf(node)
	if r := s.record(); r != nil {
		if r.publicIP == ip && r.node == want {
			return r, r.claim(ctx)
		}
		s.unclaim(ctx)
	}
	r := &nodeRecord{store: s, key: s.keys.node(ip), publicIP: ip, node: want, turn: newTurn()}
	err := r.claim(ctx)
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
	defer s.mu.Unlock()
	if s.closing {
		stop()
		return errClosed
	}
	s.node = r
	go r.keep(ctx) // unclaim waits for it
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
	r.forget(ctx)
}

// claim writes the record, or finds it written.
func (r *nodeRecord) claim(ctx context.Context) error {
	if err := r.turn.lock(ctx); err != nil {
		return err
	}
	defer r.turn.unlock()
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
		id := newLeaseID(r.node.ID)
		if _, err := r.store.grant(ctx, id, r.store.cfg.NodeTTL); err != nil {
			r.store.abandon(ctx, id)
			return err
		}
		r.lease = id
	}
	absent := clientv3.Compare(clientv3.CreateRevision(r.key), "=", 0)
	resp, err := r.store.txn(ctx, "write node record", []clientv3.Cmp{absent}, []clientv3.Op{r.put()}, []clientv3.Op{clientv3.OpGet(r.key)})
	if err != nil {
		return err
	}
	if resp.Succeeded {
		r.revision = resp.Header.Revision
		return nil
	}
	kv := resp.Responses[0].GetResponseRange().Kvs[0]
	if leaseID(kv.Lease) == r.lease {
		r.revision = kv.ModRevision
		return nil
	}
	return r.takeOver(ctx, kv)
}

// takeOver replaces a record unless it is the sign of life of another node.
func (r *nodeRecord) takeOver(ctx context.Context, kv *mvccpb.KeyValue) error {
	if other, live := otherNode(kv, r.node.ID); live {
		return fmt.Errorf("%w: %s belongs to host %.64q (node ID %.64q): give one of the two another public IP, or wait %s if that host is gone",
			control.ErrTaken, r.publicIP, other.Name, other.ID, r.store.cfg.NodeTTL)
	}
	if was, ok := parseNode(kv.Value); ok && was.ID == r.node.ID {
		r.others = unknownFields(kv.Value)
	}
	unchanged := clientv3.Compare(clientv3.ModRevision(r.key), "=", kv.ModRevision)
	resp, err := r.store.txn(ctx, "take over node record", []clientv3.Cmp{unchanged}, []clientv3.Op{r.put()}, nil)
	switch {
	case err != nil:
		return err
	case !resp.Succeeded:
		return errRace
	}
	r.revision = resp.Header.Revision
	r.store.retire(ctx, leaseID(kv.Lease))
	return nil
}

// otherNode returns the node that a record is the sign of life of. live is false for
// the node with this id, and for what nobody keeps alive.
func otherNode(kv *mvccpb.KeyValue, id string) (n nodeJSON, live bool) {
	n, ok := parseNode(kv.Value)
	return n, ok && n.ID != id && kv.Lease != 0 // one without a lease would be alive for ever
}

func (r *nodeRecord) put() clientv3.Op {
	return clientv3.OpPut(r.key, r.node.value(r.others), clientv3.WithLease(clientv3.LeaseID(r.lease)))
}

// keep keeps the record alive until ctx ends. An etcd that does not answer is for
// those to report who wait for an answer; here it is a debug line.
func (r *nodeRecord) keep(ctx context.Context) {
	defer close(r.done)
	var last string
	every := pace.Backoff{Low: r.store.cfg.NodeTTL / 3, High: r.store.cfg.NodeTTL / 3}
	for pace.Sleep(ctx, every.Next(), nil) {
		err := r.beat(ctx)
		switch {
		case err == nil:
			last = ""
		case ctx.Err() != nil:
		case errors.Is(err, control.ErrTaken) && err.Error() != last:
			last = err.Error()
			r.store.log.ErrorContext(ctx, "another node has taken over this node's record", "err", err)
		default:
			r.store.log.DebugContext(ctx, "node record not renewed", "err", err)
		}
	}
}

// beat extends the record's etcd lease, and writes the record again if that is gone.
func (r *nodeRecord) beat(ctx context.Context) error {
	if err := r.turn.lock(ctx); err != nil {
		return err
	}
	id := r.lease
	r.turn.unlock()
	if id != 0 {
		if _, err := r.store.refresh(ctx, id); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return err
		}
	}
	return r.claim(ctx)
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
		r.store.abandon(ctx, r.lease)
	}
	r.lease, r.revision = 0, -1 // no key has a revision below 0
}

// fence returns the comparison and the write that make a transaction exclude every
// other of this node: of two, one does not find the revision that it compares. A nil
// record, that of a Store that has acquired nothing, fences nothing.
func (r *nodeRecord) fence(ctx context.Context) (ifs []clientv3.Cmp, then []clientv3.Op, err error) {
	if r == nil {
		return nil, nil, nil
	}
	if err := r.turn.lock(ctx); err != nil {
		return nil, nil, err
	}
	defer r.turn.unlock()
	return []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(r.key), "=", r.revision)}, []clientv3.Op{r.put()}, nil
}
