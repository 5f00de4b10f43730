package etcd

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
)

// A ghost is an entry that a restore of etcd from an older snapshot has brought back: its owner has lost the subnet
// since, or has another one. A node takes the place of a ghost that stands where its own lease stood,
// and deletes one of its own address (own.go).

// isGhost reports whether an entry in the place of l is older than l. That shows that etcd went back: until then each
// entry that replaces another is younger.
func isGhost(kv *mvccpb.KeyValue, l control.Lease) bool {
	return kv.ModRevision < l.ModRevision && kv.Lease != 0
}

// takeBack writes l over entry, which stands in its place and is older, once that gives way.
func (s *Store) takeBack(ctx context.Context, r *nodeRecord, l, entry control.Lease, alive bool) (control.Lease, error) {
	while, err := s.givesWay(ctx, l, entry)
	if err != nil {
		return control.Lease{}, err
	}
	if l.Subnet.IsValid() && l.IPv6Subnet.IsValid() {
		if err := s.clear(ctx, l); err != nil {
			return control.Lease{}, err
		}
	}
	l.CreateRevision, l.ModRevision = entry.CreateRevision, entry.ModRevision
	l, err = s.restore(ctx, r, l, alive, while...)
	if err == nil {
		s.log.WarnContext(ctx, "etcd went back to an older state: own lease put back in the place of one of a former holder",
			"subnet", l.CIDRs(), "was", entry.Identity())
		s.rpc.Retire(ctx, leaseID(entry.Handle))
	}
	return l, err
}

// evict deletes entry, which has a part of l and is older, once that gives way.
func (s *Store) evict(ctx context.Context, l, entry control.Lease) error {
	while, err := s.givesWay(ctx, l, entry)
	if err != nil {
		return err
	}
	key := s.keys.Lease(entry)
	while = append(while, clientv3.Compare(clientv3.ModRevision(key), "=", entry.ModRevision))
	resp, err := s.rpc.Txn(ctx, "delete lease "+entry.CIDRs(), while, []clientv3.Op{clientv3.OpDelete(key)}, nil)
	switch {
	case err != nil:
		return err
	case !resp.Succeeded:
		return errRace
	}
	s.log.WarnContext(ctx, "etcd went back to an older state: entry of a former holder deleted that overlaps the own lease",
		"subnet", entry.CIDRs(), "was", entry.Identity(), "own", l.CIDRs())
	s.rpc.Retire(ctx, leaseID(entry.Handle))
	return nil
}

// givesWay decides whether entry, a ghost in the place of l, gives way, and returns the conditions for that. It does if its node has
// a younger entry, or gives no sign of life for half a NodeTTL: the node keeps neither its record nor the entry alive. It does
// not if its node lives and has no other entry, or has ended or has written the entry since: then the error is control.ErrLost. Any
// other error means that it is not known yet.
func (s *Store) givesWay(ctx context.Context, l, entry control.Lease) (while []clientv3.Cmp, err error) {
	ip := entry.Identity()
	g, isNew := s.sawGhost(entry)
	switch {
	case entry.SamePublicIP(l):
		return nil, nil
	case !ip.IsValid() || isNew:
		return nil, lostTo(l, entry)
	}
	if g.asked.IsZero() {
		if g, err = s.askGhost(ctx, g, entry); err != nil {
			return nil, err
		}
	}
	other, err := s.younger(ctx, entry)
	if err != nil {
		return nil, err
	}
	if other.ModRevision != 0 {
		return []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(s.keys.Lease(other)), "=", other.ModRevision)}, nil
	}
	wait := time.Until(g.asked.Add(s.cfg.NodeTTL/2 + time.Second))
	if wait > 0 {
		return nil, fmt.Errorf("etcd went back to an older state, in which %s is of %s: waiting %s to see whether that node lives and has no other",
			entry.CIDRs(), ip, wait.Round(time.Second))
	}
	kept, err := s.keptAlive(ctx, g, entry)
	if err != nil {
		return nil, err
	}
	revision, lives, err := s.livesAt(ctx, entry)
	switch {
	case err != nil:
		return nil, err
	case lives, kept, revision == 0 && g.record != 0: // not: it has ended since, and its dataplane goes on
		return nil, lostTo(l, entry)
	}
	return []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(s.keys.Node(ip)), "=", revision)}, nil
}

// ghost is what is remembered of one.
type ghost struct {
	revision int64         // its ModRevision
	asked    time.Time     // when record and left were read; zero: not yet
	record   int64         // revision of its node's record; 0: it had no record
	left     time.Duration // of its etcd lease, in whole seconds
}

// askGhost returns and notes g with what etcd says of it now.
func (s *Store) askGhost(ctx context.Context, g ghost, entry control.Lease) (_ ghost, err error) {
	if g.record, _, err = s.livesAt(ctx, entry); err != nil {
		return g, err
	}
	if g.left, _, err = s.rpc.TimeLeft(ctx, leaseID(entry.Handle)); err != nil {
		return g, err
	}
	g.asked = time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, seen := s.ghosts[entry.Key()]; seen {
		s.ghosts[entry.Key()] = g
	}
	return g, nil
}

// keptAlive reports whether somebody has extended the etcd lease of entry since g was asked for: more of it is left than
// could be otherwise. g.left is rounded down.
func (s *Store) keptAlive(ctx context.Context, g ghost, entry control.Lease) (bool, error) {
	passed := time.Since(g.asked)
	left, _, err := s.rpc.TimeLeft(ctx, leaseID(entry.Handle))
	return left >= 0 && left >= g.left+time.Second-passed, err
}

// sawGhost returns what is remembered of an entry that is seen as a ghost. isNew reports that it is not a ghost: it was written after
// that, or after the watch saw that etcd went back.
func (s *Store) sawGhost(entry control.Lease) (g ghost, isNew bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, seen := s.ghosts[entry.Key()]
	if !seen {
		g = ghost{revision: entry.ModRevision}
		if s.ghosts == nil {
			s.ghosts = map[string]ghost{}
		}
		s.ghosts[entry.Key()] = g
	}
	return g, g.revision != entry.ModRevision || s.wentBack != 0 && entry.ModRevision > s.wentBack
}

// noteWentBack notes the revision of the first list after etcd went back to an older state.
func (s *Store) noteWentBack(revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wentBack = revision
}

// hasGoneBack reports whether the watch saw etcd go back since held was set.
func (s *Store) hasGoneBack() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wentBack != 0
}

// younger returns the entry of entry's node that has been written after it, or none.
func (s *Store) younger(ctx context.Context, entry control.Lease) (other control.Lease, err error) {
	_, err = s.list(ctx, func(kvs []*mvccpb.KeyValue) {
		for _, kv := range kvs {
			if kv.ModRevision <= entry.ModRevision || kv.Lease == 0 {
				continue
			}
			if l, err := s.keys.Parse(kv); err == nil && l.SamePublicIP(entry) {
				other = l
			}
		}
	})
	return other, err
}

// livesAt reports whether somebody keeps the record of entry's node alive, and returns its revision, 0 for none. A
// node that is not an overlayd has no record, and lives for all that anybody knows.
func (s *Store) livesAt(ctx context.Context, entry control.Lease) (revision int64, lives bool, err error) {
	got, err := s.rpc.Get(ctx, "read node record", s.keys.Node(entry.Identity()))
	if err != nil {
		return 0, false, err
	}
	if len(got.Kvs) == 0 {
		v := entry.VTEP(!entry.PublicIP.IsValid())
		return 0, !dataplane.IsDerived(v.MAC, v.Addr, v.VNI), nil
	}
	left, granted, err := s.rpc.TimeLeft(ctx, leaseID(got.Kvs[0].Lease))
	return got.Kvs[0].ModRevision, s.isPlausible(left, granted) && !isOverdue(left, granted), err
}
