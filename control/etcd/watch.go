package etcd

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/overlayd/overlayd/control"
)

// Watch implements control.Store. A receiver that is slow is waited for: etcd keeps
// what is missed, and what it no longer has comes as a Reset.
func (s *Store) Watch(ctx context.Context) <-chan control.Update {
	updates := make(chan control.Update)
	w := &leaseWatch{Store: s, updates: updates, facts: s.newFactsTable(ctx)}
	go func() { // ends with ctx, which the close of the channel tells the receiver
		defer close(updates)
		w.run(ctx)
	}()
	return updates
}

// leaseWatch is one Watch.
type leaseWatch struct {
	*Store
	updates chan<- control.Update
	facts   *factsTable        // of the nodes
	last    *pb.ResponseHeader // of the last list
}

func (w *leaseWatch) run(ctx context.Context) { w.sessions(ctx, "leases", w.session) }

// session sends one list and then every change of it, until the stream ends. The nodes' records are
// listed at the same revision and followed by the same stream.
func (w *leaseWatch) session(ctx context.Context, listed func()) error {
	u := control.Update{Reset: true}
	at, err := w.list(ctx, func(kvs []*mvccpb.KeyValue) {
		for _, kv := range kvs {
			w.keys.add(&u, kv)
		}
	})
	if err != nil {
		return err
	}
	if err := w.listRecords(ctx, at.Revision); err != nil {
		return err
	}
	w.compare(ctx, at)
	listed()
	w.facts.complete(&u, nil)
	if err := w.send(ctx, u); err != nil {
		return err
	}
	ranges := []keyRange{prefixRange(w.keys.subnets()), prefixRange(w.keys.nodes())}
	return w.stream(ctx, ranges, at.Revision+1, func(events []*mvccpb.Event) error {
		if u, ok := w.facts.apply(w.keys, events); ok {
			return w.send(ctx, u)
		}
		return nil
	})
}

// listRecords reads the nodes' records as they stood at a revision.
func (w *leaseWatch) listRecords(ctx context.Context, revision int64) error {
	var records []*mvccpb.KeyValue
	_, err := w.listRange(ctx, "list node records", prefixRange(w.keys.nodes()), revision, func(kvs []*mvccpb.KeyValue) {
		records = append(records, kvs...)
	})
	if err == nil {
		w.facts.reset(w.keys, records)
	}
	return err
}

// compare says when etcd is not the one that it was.
func (w *leaseWatch) compare(ctx context.Context, at *pb.ResponseHeader) {
	if l := w.last; l != nil && (l.ClusterId != at.ClusterId || at.Revision < l.Revision) {
		w.log.WarnContext(ctx, "etcd was replaced or restored from a backup", "revision", at.Revision, "was", l.Revision,
			"cluster", fmt.Sprintf("%x", at.ClusterId), "cluster_was", fmt.Sprintf("%x", l.ClusterId))
	}
	w.last = at
}

// send waits for the receiver.
func (w *leaseWatch) send(ctx context.Context, u control.Update) error {
	select {
	case w.updates <- u:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
