package history_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/overlayd/overlayd/control"
)

// bug is a mistake that is put into every node of a history: between it and etcd, or around its
// Store. The zero value is not a bug.
type bug struct {
	name        string
	clones      bool   // is seen with clones only
	twoFamilies bool   // is seen in a network of both only
	fault       string // is seen with this fault only; "": with more than one
	rpc         func(p *process) tamper
	store       func(s control.Store, p *process) control.Store
}

// bugs are mistakes that the checker must find; the first is found soon.
func bugs() []bug {
	return []bug{
		{name: "sees no entry of others", twoFamilies: true, rpc: func(p *process) tamper {
			return tamper{answer: p.listsItself}
		}},
		{name: "renews whoever has the entry", fault: "operator revokes", store: func(s control.Store, p *process) control.Store {
			return careless{s, func(err error) bool { return errors.Is(err, control.ErrLost) }}
		}},
		{name: "acquires without a fence", rpc: func(*process) tamper {
			return tamper{request: unfenced(func(op *pb.RequestOp) []byte { return op.GetRequestPut().GetKey() })}
		}},
		{name: "releases what is another's", fault: "drain while stopped", rpc: func(*process) tamper {
			return tamper{request: unfenced(func(op *pb.RequestOp) []byte { return op.GetRequestDeleteRange().GetKey() })}
		}},
		{name: "takes a keep-alive for proof that the entry is its own", store: func(s control.Store, p *process) control.Store {
			return blindRenewal{s, p}
		}},
		{name: "serves on after the end of the lease", store: func(s control.Store, p *process) control.Store {
			return lateEnd{s, func(l control.Lease) time.Time { return l.Expires.Add(leaseTTL) }}
		}},
		{name: "counts the lease from the answer", fault: "stutter", store: func(s control.Store, p *process) control.Store {
			return lateEnd{s, func(control.Lease) time.Time { return time.Now().Add(leaseTTL) }}
		}},
		{name: "writes over who has taken its place", store: func(s control.Store, p *process) control.Store {
			return stubborn{s, p}
		}},
		{name: "does not notice a clone", clones: true, rpc: func(p *process) tamper {
			return tamper{answer: p.readsItself}
		}},
		{name: "takes no answer for a yes", store: func(s control.Store, p *process) control.Store {
			return careless{s, func(err error) bool { return !errors.Is(err, control.ErrLost) && !errors.Is(err, control.ErrGone) }}
		}},
		{name: "reads its entry as it was", rpc: func(*process) tamper {
			return tamper{answer: stale()}
		}},
		{name: "writes without comparing the records of nodes", clones: true, rpc: func(*process) tamper {
			return tamper{request: uncompared("/overlayd/nodes/")}
		}},
		{name: "takes the lease of a node without a record", store: func(s control.Store, p *process) control.Store {
			return robber{s, p}
		}},
		{name: "goes on with its last subnet if none is free", store: func(s control.Store, p *process) control.Store {
			return squatter{s}
		}},
	}
}

// unfenced drops the comparisons of transactions with an operation whose key is that of a lease.
func unfenced(key func(op *pb.RequestOp) []byte) func(method string, message []byte) []byte {
	return func(method string, message []byte) []byte {
		var txn pb.TxnRequest
		if method != "/etcdserverpb.KV/Txn" || proto.Unmarshal(message, &txn) != nil {
			return message
		}
		for _, op := range txn.Success {
			if strings.Contains(string(key(op)), "/subnets/") {
				txn.Compare = nil
			}
		}
		changed, err := proto.Marshal(&txn)
		if err != nil {
			return message
		}
		return changed
	}
}

// readsItself makes every record of a node in an answer one that this process has written.
func (p *process) readsItself(method string, _, message []byte) []byte {
	var answer proto.Message
	var kvs []*mvccpb.KeyValue
	switch method {
	case "/etcdserverpb.KV/Range":
		var resp pb.RangeResponse
		_ = proto.Unmarshal(message, &resp) // etcd has written it
		answer, kvs = &resp, resp.Kvs
	case "/etcdserverpb.KV/Txn":
		var resp pb.TxnResponse
		_ = proto.Unmarshal(message, &resp)
		for _, r := range resp.Responses {
			kvs = append(kvs, r.GetResponseRange().GetKvs()...)
		}
		answer = &resp
	default:
		return message
	}
	for _, kv := range kvs {
		if record := map[string]any{}; strings.Contains(string(kv.Key), "/overlayd/nodes/") && json.Unmarshal(kv.Value, &record) == nil {
			record["boot"], record["netns"], record["nonce"] = p.identity.Boot, p.identity.NetNS, p.identity.Nonce
			kv.Value, _ = json.Marshal(record) // it has just been read
		}
	}
	changed, _ := proto.Marshal(answer) // it has just been read
	return changed
}

// blindRenewal looks at the etcd lease alone.
type blindRenewal struct {
	control.Store
	p *process
}

// Renew implements control.Store.
func (b blindRenewal) Renew(ctx context.Context, l control.Lease) (control.Lease, error) {
	begin := time.Now()
	b.p.link.held()
	resp, err := b.p.m.h.world.client.KeepAliveOnce(ctx, clientv3.LeaseID(l.Handle))
	b.p.link.held()
	if err != nil {
		return b.Store.Renew(ctx, l)
	}
	l.Expires = begin.Add(time.Duration(resp.TTL) * time.Second)
	return l, nil
}

// lateEnd lets every lease end at another time.
type lateEnd struct {
	control.Store
	end func(l control.Lease) time.Time
}

// Renew implements control.Store.
func (e lateEnd) Renew(ctx context.Context, l control.Lease) (control.Lease, error) {
	l, err := e.Store.Renew(ctx, l)
	if err == nil {
		l.Expires = e.end(l)
	}
	return l, err
}

// stubborn takes back what it has lost.
type stubborn struct {
	control.Store
	p *process
}

// Renew implements control.Store.
func (s stubborn) Renew(ctx context.Context, l control.Lease) (control.Lease, error) {
	renewed, err := s.Store.Renew(ctx, l)
	if !errors.Is(err, control.ErrLost) {
		return renewed, err
	}
	begin := time.Now()
	client, key := s.p.m.h.world.client, s.p.m.h.prefix+"/subnets/"+l.Key()
	s.p.link.held()
	grant, err := client.Grant(ctx, int64(leaseTTL/time.Second))
	if err == nil {
		_, err = client.Put(ctx, key, string(l.Value()), clientv3.WithLease(grant.ID))
	}
	if err != nil {
		return control.Lease{}, err
	}
	l.Handle, l.Expires = int64(grant.ID), begin.Add(leaseTTL)
	return l, nil
}

// find runs histories with a bug until one shows it.
func (w *world) find(t *testing.T, number, most int, seed uint64, b bug) (ran int, found string) {
	const atOnce = 8
	results := make(chan []string, most)
	var group errgroup.Group
	group.SetLimit(atOnce)
	for ; ran < most && found == ""; ran++ {
		this := number + ran
		group.Go(func() error {
			wrong, err := w.run(this, seed+uint64(this), plan{nodes: 30, faults: 4 * leaseTTL, clones: b.clones, bug: b})
			results <- wrong
			return err
		})
		for len(results) > 0 && found == "" {
			found = strings.Join(<-results, "\n")
		}
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	for len(results) > 0 && found == "" {
		found = strings.Join(<-results, "\n")
	}
	return ran, found
}
