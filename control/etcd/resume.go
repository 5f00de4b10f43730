package etcd

import (
	"context"
	"errors"
	"slices"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdrpc"
)

// resume takes up a lease of this node. ok is false if the node has no lease.
func (a *acquisition) resume(ctx context.Context, n control.Network, c census) (l control.Lease, ok bool, err error) {
	own, err := a.deleteUnfit(ctx, n, c.own)
	if err != nil || len(own) == 0 {
		return control.Lease{}, false, err
	}
	old := a.preferred(own)
	if a.isStale(old.Lease) && a.unfit < maxUnfit && control.Resumes(n, a.node, c.taken) {
		a.unfit++
		return control.Lease{}, false, a.discard(ctx, old.Lease)
	}
	if a.id != 0 && leaseID(old.Handle) == a.id { // the transaction in doubt took effect
		old.Expires, old.Facts = a.expires, a.offer.Facts
		return old.Lease, true, a.yield(ctx, old.Lease)
	}
	if err := a.cede(ctx, old.Lease); err != nil {
		return control.Lease{}, false, err
	}
	want := a.given.KeepMACs(a.offer, old.Lease)
	want.Subnet, want.IPv6Subnet, want.CreateRevision, want.ModRevision = old.Subnet, old.IPv6Subnet, old.CreateRevision, old.ModRevision
	if l, ok := a.succeed(ctx, old.Lease, want); ok {
		a.giveUp(ctx)
		return l, true, nil
	}
	if old.Handle == 0 {
		l, err = a.write(ctx, a.record, want, old.while...)
	} else {
		l, err = a.put(ctx, want, old.while...)
	}
	if etcdrpc.Refused(err) {
		l, err = a.goOn(ctx, old.Lease, want, err)
		return l, err == nil, err
	}
	if err != nil {
		return control.Lease{}, false, err
	}
	if was, is := old.Identity(), l.Identity(); was != is {
		a.former = append(slices.Clip(a.former), was)
		a.log.InfoContext(ctx, "own lease of an earlier public IP taken over", "subnet", l.CIDRs(), "was", was, "public_ip", is)
	}
	if l.Handle == 0 {
		a.giveUp(ctx) // what an earlier try may have granted
	}
	a.retired = append(a.retired, leaseID(old.Handle))
	return l, true, nil
}

// preferred picks the one to take up: what this acquisition wrote itself, else what the node had in its last run, else a
// reservation; and of several a reservation, and the oldest. A reservation that the node has not had does not move it: anybody who
// may write to etcd can make one, and the node's pods have addresses of the subnet that it had.
func (a *acquisition) preferred(own []ownEntry) ownEntry {
	rank := func(l ownEntry) int {
		had := a.hadBefore(l.Subnet) || a.hadBefore(l.IPv6Subnet)
		switch {
		case a.id != 0 && leaseID(l.Handle) == a.id:
			return 0
		case l.Handle == 0 && a.node.HadSubnets(l.Lease):
			return 1
		case l.Handle != 0 && had:
			return 2
		case l.Handle == 0:
			return 3
		}
		return 4
	}
	return slices.MinFunc(own, func(x, y ownEntry) int {
		if d := rank(x) - rank(y); d != 0 {
			return d
		}
		return int(min(max(x.CreateRevision-y.CreateRevision, -1), 1))
	})
}

// isStale reports whether a lease of this node is not what its pods have: a restore of etcd has brought it back.
func (a *acquisition) isStale(l control.Lease) bool {
	ours := l.Handle == 0 || leaseID(l.Handle) == a.id // an operator has reserved it, or this acquisition has written it
	return !ours && !a.hadBefore(l.Subnet) && !a.hadBefore(l.IPv6Subnet)
}

// maxUnfit bounds how many are deleted: whoever may write to etcd can make many of this node.
const maxUnfit = 16

// deleteUnfit deletes entries that no longer fit the network, and returns the rest. It leaves
// reservations to the operator who made them. errRace: something was deleted.
func (a *acquisition) deleteUnfit(ctx context.Context, n control.Network, own []ownEntry) (fit []ownEntry, err error) {
	for _, l := range own {
		unfit := a.node.CheckSubnets(l.Subnet, l.IPv6Subnet)
		if !control.Compatible(n, l.Subnet, l.IPv6Subnet) {
			unfit = errors.New("the network config has changed")
		}
		if unfit == nil {
			fit = append(fit, l)
			continue
		}
		if l.Handle != 0 {
			a.unfit++
		}
		if a.unfit > maxUnfit { // the others expire
			continue
		}
		a.log.WarnContext(ctx, "own lease no longer fits: choosing another subnet", "subnet", l.CIDRs(), "reservation", l.Handle == 0, "err", unfit)
		if l.Handle == 0 {
			continue
		}
		if err = a.discard(ctx, l.Lease); !errors.Is(err, errRace) {
			return nil, err
		}
	}
	return fit, err
}
