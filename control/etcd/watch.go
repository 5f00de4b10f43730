package etcd

import (
	"context"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdkeys"
	"github.com/overlayd/overlayd/control/etcdrpc"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// Watch implements control.Store. A receiver that is slow is waited for: etcd keeps
// what is missed, and what it no longer has comes as a Reset.
func (s *Store) Watch(ctx context.Context) <-chan control.Update {
	updates := make(chan control.Update)
	w := &leaseWatch{Store: s, updates: updates, facts: s.newFacts(ctx)}
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
	facts   *etcdkeys.Facts    // of the nodes
	last    *pb.ResponseHeader // of the last list, with the revision of the last event
}

func (w *leaseWatch) run(ctx context.Context) {
	w.rpc.Sessions(ctx, "leases", w.session)
	w.mu.Lock()
	w.inForce = control.Network{} // the next Acquire may have another one
	w.mu.Unlock()
}

// session sends one list and then every change of it, until the stream ends. The nodes' records are
// listed at the same revision and followed by the same stream.
func (w *leaseWatch) session(ctx context.Context, listed func()) error {
	u, wrote := control.Update{Reset: true}, w.heldRevision()
	sieve, omitted, chosen := w.newSieve(ctx), 0, 0
	choose := func() {
		all := len(u.Leases)
		u.Leases = sieve.Choose(u.Leases, w.facts.Knows)
		chosen = len(u.Leases)
		omitted += all - chosen
	}
	at, err := w.list(ctx, func(kvs []*mvccpb.KeyValue) {
		if len(u.Leases) > chosen+chooseAfter {
			choose()
		}
		for _, kv := range kvs {
			w.keys.Add(&u, kv)
			if last := len(u.Bad) - 1; last >= control.MaxUnreadable && !w.facts.Knows(u.Bad[last].Key) {
				u.Bad = u.Bad[:last] // it would only be counted
			}
		}
	})
	if err != nil {
		return err
	}
	choose()
	w.facts.Reset(u.Leases, sieve, omitted)
	if err := w.listRecords(ctx, at.Revision); err != nil {
		return err
	}
	u.Leases = slices.Clone(u.Leases) // they stay, and what a slice that has grown has in vain would too
	u.Older = w.compare(ctx, at, wrote)
	w.noteOwn(u.Leases)
	listed()
	since := time.Now()
	w.facts.Complete(&u, nil)
	w.noteOmitted(ctx)
	if err := w.send(ctx, u); err != nil {
		return err
	}
	ranges := []etcdrpc.KeyRange{etcdrpc.PrefixRange(w.keys.Subnets()), etcdrpc.PrefixRange(w.keys.Nodes())}
	return w.rpc.Stream(ctx, ranges, at, w.heldRevision(), func(events []*mvccpb.Event) error {
		for _, e := range events {
			w.last.Revision = max(w.last.Revision, e.Kv.ModRevision)
		}
		w.sawEvents(ctx, events)
		if u, ok := w.facts.Apply(w.keys, events); ok {
			w.noteOmitted(ctx)
			if err := w.send(ctx, u); err != nil {
				return err
			}
		}
		if _, room := w.facts.Omitted(); room && time.Since(since) > listForRoom {
			return etcdrpc.ErrRelist
		}
		return nil
	})
}

// listForRoom is how long a list counts when others of its leases may have room: whoever makes too many can make room, too.
const listForRoom = 30 * time.Second

// chooseAfter is how many further leases of a list are held until it is chosen among them: fewer take less memory and more time.
const chooseAfter = 20_000

// newSieve returns one for the network in force.
func (w *leaseWatch) newSieve(ctx context.Context) *control.Sieve {
	n, err := w.networkInForce(ctx)
	if err != nil {
		w.log.DebugContext(ctx, "network config not read: any lease is taken for one that can be used", "err", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return control.NewSieve(n, w.lengths)
}

// noteOmitted says, once in a while, that there are too many leases.
func (w *leaseWatch) noteOmitted(ctx context.Context) {
	if n, _ := w.facts.Omitted(); n > 0 && w.due(pace.Notice{Key: "omitted"}) {
		w.log.WarnContext(ctx, "too many leases in etcd: the youngest, and those that cannot be used, are not looked at", "count", n, "max", control.MaxLeases,
			"fix", "find out who writes leases below "+w.keys.Subnets()+" and delete those that no node has")
	}
}

// listRecords reads the nodes' records as they stood at a revision.
func (w *leaseWatch) listRecords(ctx context.Context, revision int64) error {
	seen := w.seeRecords()
	_, err := w.rpc.List(ctx, "list node records", etcdrpc.PrefixRange(w.keys.Nodes()), revision, func(kvs []*mvccpb.KeyValue) {
		w.facts.Add(w.keys, kvs)
		seen.add(ctx, kvs)
	})
	if err == nil {
		seen.end(revision)
	}
	return err
}

// compare says when etcd is not the one that it was, and reports whether it went back to an earlier state. wrote is the
// revision of what this node had written before the list, which the watch may not have shown yet.
func (w *leaseWatch) compare(ctx context.Context, at *pb.ResponseHeader, wrote int64) (older bool) {
	cluster, was := at.ClusterId, wrote
	if w.last != nil {
		cluster, was = w.last.ClusterId, max(w.last.Revision, wrote)
	}
	if older = cluster != at.ClusterId || at.Revision < was; older {
		w.noteWentBack(at.Revision)
		w.log.WarnContext(ctx, "etcd was replaced or restored from a backup", "revision", at.Revision, "was", was,
			"cluster", fmt.Sprintf("%x", at.ClusterId), "cluster_was", fmt.Sprintf("%x", cluster))
	}
	w.last = at
	return older
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

// newFacts returns an empty table of what nodes say of themselves. A record that cannot be read is logged.
func (s *Store) newFacts(ctx context.Context) *etcdkeys.Facts {
	var notices pace.Notices
	return etcdkeys.NewFacts(etcdkeys.FactsConfig{Bad: func(key string, err error) {
		due, more := notices.Due(time.Now(), pace.Notice{Key: control.Printable(key, 160)})
		for _, n := range due {
			s.log.WarnContext(ctx, "node record ignored", "key", n.Key, "err", err)
		}
		if more > 0 {
			s.log.WarnContext(ctx, "node record ignored: and more", "count", more)
		}
	}})
}
