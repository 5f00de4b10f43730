package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
)

// record is this node's sign of life: P/overlayd/nodes/<public IP>, attached to an
// etcd lease that lasts Config.NodeTTL and is kept alive. Store.nodeMu guards it.
type record struct {
	store    *Store
	key      string
	publicIP netip.Addr
	nodeJSON
	lease    leaseID
	revision int64 // ModRevision of the key when it was last seen to be ours

	stop context.CancelFunc // ends keep
	done chan struct{}      // closed when keep has returned
}

// claim makes sure that the record of node is this process's. control.ErrTaken:
// another live node has it. The same node takes it over from an earlier process.
func (s *Store) claim(ctx context.Context, node control.Node) error {
	ip := node.PublicIP
	if !ip.IsValid() {
		ip = node.PublicIPv6
	}
	switch {
	case !ip.IsValid():
		return errors.New("node has no public IP")
	case node.ID == "":
		return errors.New("node ID is empty")
	}
	s.nodeMu.Lock()
	defer s.nodeMu.Unlock()
	if r := s.node; r != nil && (r.publicIP != ip || r.ID != node.ID) {
		r.drop(ctx)
		s.node = nil
	}
	if s.node != nil {
		return s.node.claim(ctx)
	}
	r := &record{store: s, key: s.keys.node(ip), publicIP: ip, nodeJSON: nodeJSON{ID: node.ID, Name: node.Name}}
	if err := r.claim(ctx); err != nil {
		r.forget(ctx)
		return err
	}
	kctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.stop, r.done = stop, make(chan struct{})
	s.node = r
	go r.keep(kctx)
	return nil
}

// claim writes the record, or finds it written.
func (r *record) claim(ctx context.Context) error {
	for try := 0; ; try++ {
		err := r.write(ctx)
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound) && try < 3: // etcd was down for longer than the TTL, or wiped
			r.lease = 0
		case errors.Is(err, errRace):
			if err := pause(ctx, raceDelay); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

func (r *record) write(ctx context.Context) error {
	if r.lease == 0 {
		r.lease = newLeaseID()
		if _, err := r.store.grant(ctx, r.lease, r.store.cfg.NodeTTL); err != nil {
			return err
		}
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
func (r *record) takeOver(ctx context.Context, kv *mvccpb.KeyValue) error {
	other, ok := parseNode(kv.Value)
	if ok && other.ID != r.ID && kv.Lease != 0 { // without a lease it would be alive for ever
		return fmt.Errorf("%w: %s belongs to host %.64q (node ID %.64q); give one of the two another public IP, or wait %s if that host is gone",
			control.ErrTaken, r.publicIP, other.Name, other.ID, r.store.cfg.NodeTTL)
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

func (r *record) put() clientv3.Op {
	return clientv3.OpPut(r.key, r.value(), clientv3.WithLease(clientv3.LeaseID(r.lease)))
}

// keep keeps the record alive until ctx ends. An etcd that does not answer is the
// business of those who wait for an answer, so it is no more than a debug line here.
func (r *record) keep(ctx context.Context) {
	defer close(r.done)
	var last string
	for pause(ctx, r.store.cfg.NodeTTL/3) == nil {
		err := r.beat(ctx)
		switch {
		case err == nil:
			last = ""
		case ctx.Err() != nil:
		case errors.Is(err, control.ErrTaken) && err.Error() != last:
			last = err.Error()
			r.store.log.ErrorContext(ctx, "this node's record was taken", "err", err)
		default:
			r.store.log.DebugContext(ctx, "node record not kept alive", "err", err)
		}
	}
}

// beat extends the record's etcd lease, and writes the record again if that is gone.
func (r *record) beat(ctx context.Context) error {
	r.store.nodeMu.Lock()
	defer r.store.nodeMu.Unlock()
	if r.lease != 0 {
		if _, err := r.store.refresh(ctx, r.lease); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return err
		}
		r.lease = 0
	}
	return r.claim(ctx)
}

// drop ends the keeping and withdraws the record. Store.nodeMu is held.
func (r *record) drop(ctx context.Context) {
	r.stop()
	r.store.nodeMu.Unlock() // keep may be waiting for it
	<-r.done
	r.store.nodeMu.Lock()
	r.forget(ctx)
}

// forget revokes the record's etcd lease, and with it deletes the record if it is ours.
func (r *record) forget(ctx context.Context) {
	if r.lease != 0 {
		r.store.abandon(ctx, r.lease)
		r.lease = 0
	}
}

// fence returns the comparison and the write that make a transaction exclude every
// other of this node: one of two cannot find the revision that it compares.
func (s *Store) fence() (ifs []clientv3.Cmp, then []clientv3.Op) {
	s.nodeMu.Lock()
	defer s.nodeMu.Unlock()
	r := s.node
	if r == nil {
		return nil, nil
	}
	return []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(r.key), "=", r.revision)}, []clientv3.Op{r.put()}
}

// fenced remembers the revision of a transaction with a fence that took effect.
func (s *Store) fenced(revision int64) {
	s.nodeMu.Lock()
	defer s.nodeMu.Unlock()
	if s.node != nil {
		s.node.revision = revision
	}
}
