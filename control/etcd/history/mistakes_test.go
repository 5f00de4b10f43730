package history_test

import (
	"context"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
)

// careless takes some errors of a renewal for its success.
type careless struct {
	control.Store
	ignores func(err error) bool
}

// Renew implements control.Store.
func (c careless) Renew(ctx context.Context, l control.Lease) (control.Lease, error) {
	begin := time.Now()
	renewed, err := c.Store.Renew(ctx, l)
	if err == nil || !c.ignores(err) {
		return renewed, err
	}
	l.Expires = begin.Add(leaseTTL)
	return l, nil
}

// stale answers each reading of an entry with the answer before, as a member of etcd that lags behind.
func stale() func(method string, request, message []byte) []byte {
	var last []byte // calls of one process follow one another, but for those that do not read
	return func(method string, request, message []byte) []byte {
		var txn pb.TxnRequest
		if method != "/etcdserverpb.KV/Txn" || proto.Unmarshal(request, &txn) != nil || len(txn.Compare) > 0 {
			return message
		}
		before := last
		if last = message; before == nil {
			return message
		}
		return before
	}
}

// uncompared drops the comparisons of keys of a kind from each transaction.
func uncompared(kind string) func(method string, message []byte) []byte {
	return func(method string, message []byte) []byte {
		var txn pb.TxnRequest
		if method != "/etcdserverpb.KV/Txn" || proto.Unmarshal(message, &txn) != nil {
			return message
		}
		txn.Compare = slices.DeleteFunc(txn.Compare, func(c *pb.Compare) bool { return strings.Contains(string(c.Key), kind) })
		changed, _ := proto.Marshal(&txn) // it has just been read
		return changed
	}
}

// listsItself leaves the entries of others out of each list of leases.
func (p *process) listsItself(method string, request, message []byte) []byte {
	var asked pb.RangeRequest
	if method != "/etcdserverpb.KV/Range" || proto.Unmarshal(request, &asked) != nil || !strings.HasSuffix(string(asked.Key), "/subnets/") {
		return message
	}
	var resp pb.RangeResponse
	_ = proto.Unmarshal(message, &resp) // etcd has written it
	own := func(kv *mvccpb.KeyValue) bool { return strings.Contains(string(kv.Value), `"`+p.host.ip.String()+`"`) }
	var kvs []*mvccpb.KeyValue
	for _, kv := range resp.Kvs {
		if own(kv) {
			kvs = append(kvs, kv)
		}
	}
	resp.Kvs = kvs
	changed, _ := proto.Marshal(&resp) // it has just been read
	return changed
}

// robber takes a node without a record for dead.
type robber struct {
	control.Store
	p *process
}

// Acquire implements control.Store.
func (r robber) Acquire(ctx context.Context, n control.Node, vteps []dataplane.VTEP) (control.Lease, error) {
	l, err := r.Store.Acquire(ctx, n, vteps)
	if err == nil {
		return l, nil
	}
	h := r.p.m.h
	r.p.link.held()
	entries, listed := h.below(ctx, "/")
	if listed != nil {
		return l, err
	}
	records := map[string]bool{}
	for _, e := range entries {
		records[e.key] = true
	}
	for _, e := range entries {
		name, isLease := strings.CutPrefix(e.key, h.prefix+"/subnets/")
		other, unread := control.ParseLease(name, []byte(e.value))
		if !isLease || unread != nil || records[h.prefix+"/overlayd/nodes/"+other.Identity().String()] {
			continue
		}
		unchanged := clientv3.Compare(clientv3.LeaseValue(e.key), "=", e.lease)
		_, _ = h.world.client.Txn(ctx).If(unchanged).Then(clientv3.OpDelete(e.key)).Commit() // the mistake
	}
	r.p.link.held()
	return l, err
}

// squatter asks for no lease that it cannot get.
type squatter struct{ control.Store }

// Acquire implements control.Store.
func (s squatter) Acquire(ctx context.Context, n control.Node, vteps []dataplane.VTEP) (control.Lease, error) {
	begin := time.Now()
	l, err := s.Store.Acquire(ctx, n, vteps)
	if err == nil || len(n.Previous) == 0 {
		return l, err
	}
	l = control.Lease{PublicIP: n.PublicIP, BackendType: "vxlan", Expires: begin.Add(leaseTTL)}
	for _, p := range n.Previous {
		if p.Addr().Is4() {
			l.Subnet = p
		} else {
			l.IPv6Subnet = p
		}
	}
	return l, nil
}
