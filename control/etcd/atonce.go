package etcd

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdrpc"
)

// This file has what an acquisition asks of etcd at once, because etcd may be far away.

// networkAndLeases reads the network config. A Store that acquires for the first time gets the etcd leases of record
// and entry meanwhile: etcd may be far away. If it refuses one, that is seen when it is needed.
func (a *acquisition) networkAndLeases(ctx context.Context) (n control.Network, err error) {
	if a.Store.record() != nil || a.id != 0 {
		return a.Network(ctx)
	}
	var group errgroup.Group
	group.Go(func() error {
		if id := etcdrpc.NewLeaseID(a.given.ID); a.grantRecord(ctx, id) == nil {
			a.recordLease = id
		}
		return nil
	})
	group.Go(func() error {
		if id := etcdrpc.NewLeaseID(a.given.ID); a.grantEntry(ctx, id) == nil {
			a.id = id
		}
		return nil
	})
	n, err = a.Network(ctx)
	_ = group.Wait() // nil
	return n, err
}

// grantEntry grants an etcd lease for the entry.
func (a *acquisition) grantEntry(ctx context.Context, id leaseID) (err error) {
	if a.expires, err = a.rpc.Grant(ctx, id, a.cfg.LeaseTTL); err != nil {
		a.rpc.Abandon(ctx, id)
	}
	return err
}

// tidy takes back what the acquisition does not need any more, all of it at once.
func (a *acquisition) tidy(ctx context.Context) {
	var group errgroup.Group
	do := func(f func()) { group.Go(func() error { f(); return nil }) }
	do(func() { a.leave(ctx) })
	do(func() { a.dropQuestions(ctx) })
	do(func() { a.record.retire(ctx) })
	for _, id := range a.retired {
		do(func() { a.rpc.Retire(ctx, id) })
	}
	_ = group.Wait() // nil
	a.retired = nil
}
