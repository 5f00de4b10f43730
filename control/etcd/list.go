package etcd

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdkeys"
	"github.com/overlayd/overlayd/control/etcdrpc"
)

// list calls page with all entries below P/subnets/, in key order and as they
// stood at one revision, and returns the header of that revision.
func (s *Store) list(ctx context.Context, page func([]*mvccpb.KeyValue)) (*pb.ResponseHeader, error) {
	return s.rpc.List(ctx, "list leases", etcdrpc.PrefixRange(s.keys.Subnets()), 0, page)
}

// Published implements control.Publisher: it returns the leases that node has written under whatever
// public IP, and its reservations. If it has written none, its leases are those with its
// public IPs: those of a flanneld on its host, or of an earlier ID. Otherwise such leases are of a
// host that had its address before.
func (s *Store) Published(ctx context.Context, node control.Node) (leases []control.Lease, err error) {
	own := control.Lease{PublicIP: node.PublicIP, PublicIPv6: node.PublicIPv6}
	tag := etcdrpc.LeaseTag(node.ID)
	wrote := func(l control.Lease) bool { return node.ID != "" && leaseID(l.Handle).HasTag(tag) }
	var elsewhere []control.Lease // written by a node with this tag under another public IP
	_, err = s.list(ctx, func(kvs []*mvccpb.KeyValue) {
		for _, kv := range kvs {
			l, err := s.keys.Parse(kv)
			if err != nil || len(leases)+len(elsewhere) >= maxOwn && !node.HadSubnets(l) {
				continue
			}
			switch {
			case l.SamePublicIP(own):
				leases = append(leases, l)
			case wrote(l):
				elsewhere = append(elsewhere, l)
			}
		}
	})
	for _, l := range elsewhere {
		var left bool
		if err == nil {
			left, err = s.hasLeft(ctx, node, l)
		}
		if left {
			leases = append(leases, l)
		}
	}
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(leases, wrote) {
		leases = slices.DeleteFunc(leases, func(l control.Lease) bool { return !wrote(l) && l.Handle != 0 })
	}
	return leases, nil
}

// maxOwn bounds how many entries are looked at of those that seem to be a node's own, besides that of its last run: whoever may write to etcd can
// make as many of them as they like.
const maxOwn = 256

// hasLeft reports whether l, which has node's tag and another public IP, is that of node before its address changed. Of 5000 nodes two
// have one tag with a probability of 0.6 %: so the node must remember the address or the subnets, or still have its record there. A host whose
// node file was copied from another one remembers what is the other's: if that keeps a record there, it is not left.
func (s *Store) hasLeft(ctx context.Context, node control.Node, l control.Lease) (bool, error) {
	got, err := s.rpc.Get(ctx, "read node record", s.keys.Node(l.Identity()))
	if err != nil {
		return false, err
	}
	remembers := slices.Contains(node.Former, l.Identity()) || node.HadSubnets(l)
	if len(got.Kvs) == 0 {
		return remembers, nil
	}
	r, ok := etcdkeys.ParseRecord(got.Kvs[0].Value)
	_, cloned := etcdkeys.RecordOf(node).OriginalOf(got.Kvs[0])
	return (remembers || ok && r.ID == node.ID) && !cloned, nil
}

// census is what an acquisition must know of all leases.
type census struct {
	taken []netip.Prefix // see control.AppendTaken and control.AppendPublic
	own   []ownEntry
}

// ownEntry is an entry that is the node's own by control.Node.Ownership.
type ownEntry struct {
	control.Lease
	while []clientv3.Cmp // what must hold for that to be so, beside the entry's own revision
}

func (a *acquisition) census(ctx context.Context, n control.Network) (census, error) {
	var c census
	var doubtful []control.Lease
	tag := etcdrpc.LeaseTag(a.node.ID)
	var ips [][]byte
	for _, ip := range [...]netip.Addr{a.node.PublicIP, a.node.PublicIPv6} {
		if ip.IsValid() {
			ips = append(ips, []byte(ip.String()))
		}
	}
	var revoked []netip.Prefix
	var group errgroup.Group
	group.Go(func() (err error) {
		revoked, err = a.revoked(ctx, n)
		return err
	})
	_, err := a.list(ctx, func(kvs []*mvccpb.KeyValue) {
		for _, kv := range kvs {
			before := len(c.taken)
			c.taken = control.AppendTaken(c.taken, n, a.keys.Name(kv.Key), kv.Value)
			c.taken = control.AppendPublic(c.taken, n, kv.Value)
			named := slices.ContainsFunc(ips, func(ip []byte) bool { return bytes.Contains(kv.Value, ip) })
			wrote := leaseID(kv.Lease).HasTag(tag)
			if kv.Lease != 0 && !named && !wrote && !slices.ContainsFunc(c.taken[before:], a.hadBefore) {
				continue // reading the value of every lease would be most of the work; reservations are few, in whatever spelling
			}
			l, err := a.keys.Parse(kv)
			if err != nil {
				continue
			}
			switch a.node.Ownership(n, a.vteps, l, wrote) {
			case control.Own:
				if len(c.own) < maxOwn || a.node.HadSubnets(l) {
					c.own = append(c.own, ownEntry{Lease: l})
				}
			case control.OwnUnlessLive:
				doubtful = append(doubtful, l)
			}
		}
	})
	if err == nil {
		c.own, err = a.notCloned(ctx, c.own)
	}
	for _, l := range doubtful {
		if err == nil {
			c.own, err = a.appendVacated(ctx, c.own, l)
		}
	}
	if other := group.Wait(); err == nil {
		err = other
	}
	c.taken = append(c.taken, revoked...)
	if err != nil {
		return census{}, fmt.Errorf("look for a free subnet: %w", err)
	}
	return c, nil
}

// revoked returns the subnets that were revoked of this node, which it is not to get again.
func (a *acquisition) revoked(ctx context.Context, n control.Network) (taken []netip.Prefix, err error) {
	revocations, err := a.revocations(ctx, func(l control.Lease) bool { return a.node.Ownership(n, a.vteps, l, false) != control.NotOwn })
	for _, l := range revocations {
		taken = append(taken, l.Subnet, l.IPv6Subnet)
	}
	return taken, err
}

func (a *acquisition) hadBefore(p netip.Prefix) bool { return slices.Contains(a.node.Previous, p) }

// appendVacated appends l to own if no other live node publishes its public IP, and for
// as long as none does.
func (a *acquisition) appendVacated(ctx context.Context, own []ownEntry, l control.Lease) ([]ownEntry, error) {
	key := a.keys.Node(l.Identity())
	got, err := a.rpc.Get(ctx, "read node record", key)
	if err != nil {
		return own, err
	}
	var revision int64 // 0: there is no record
	if len(got.Kvs) > 0 {
		_, isOther := otherNode(got.Kvs[0], a.node.ID)
		_, isClone := etcdkeys.RecordOf(a.node).OriginalOf(got.Kvs[0])
		if isOther || isClone {
			if p, _, err := a.pulseOf(ctx, got.Kvs[0], false); p != dead || err != nil {
				return own, err
			}
		}
		revision = got.Kvs[0].ModRevision
	}
	unchanged := clientv3.Compare(clientv3.ModRevision(key), "=", revision)
	return append(own, ownEntry{l, []clientv3.Cmp{unchanged}}), nil
}

// takes says what an entry takes: see taken, held and claimed.
type takes func(n control.Network, key string, kv *mvccpb.KeyValue) []netip.Prefix

// taken is control.AppendTaken.
func taken(n control.Network, key string, kv *mvccpb.KeyValue) []netip.Prefix {
	return control.AppendTaken(nil, n, key, kv.Value)
}

// held is control.AppendHeld.
func held(n control.Network, key string, kv *mvccpb.KeyValue) []netip.Prefix {
	return control.AppendHeld(nil, n, key, kv.Value)
}

// claimed is held, or taken by junk that was written over an entry: whoever wrote that will put it right.
func claimed(n control.Network, key string, kv *mvccpb.KeyValue) []netip.Prefix {
	if _, err := control.ParseLease(key, kv.Value); err != nil && kv.Version > 1 {
		return taken(n, key, kv)
	}
	return held(n, key, kv)
}

// standing returns the rivals of l while that stands in etcd as it says. errRace: it does not, and so its revisions tell
// nothing beside those of others.
func (s *Store) standing(ctx context.Context, l control.Lease, created int64, takes takes) (rivals []*mvccpb.KeyValue, err error) {
	rivals, stands, err := s.rivals(ctx, l, created, takes)
	if err == nil && stands != l.ModRevision {
		return nil, errRace
	}
	return rivals, err
}

// rivals returns the other entries that take a part of l's subnets and were created at the revision created or before. An
// entry of the same revision counts, too: a restore can write all entries in one transaction. stands is the revision of l's
// own entry, or 0 if etcd has none.
func (s *Store) rivals(ctx context.Context, l control.Lease, created int64, takes takes) (rivals []*mvccpb.KeyValue, stands int64, err error) {
	s.mu.Lock()
	lengths := s.lengths
	s.mu.Unlock()
	network := sync.OnceValues(func() (control.Network, error) { return s.networkInForce(ctx) })
	var unknown error // without the network nobody can say what an entry takes
	_, err = s.list(ctx, func(kvs []*mvccpb.KeyValue) {
		for _, kv := range kvs {
			if s.keys.Name(kv.Key) == l.Key() {
				stands = kv.ModRevision
				continue
			}
			if kv.CreateRevision > created {
				continue
			}
			if v4, v6, err := control.ParseKey(s.keys.Name(kv.Key)); err != nil || !overlap(l, v4, v6) {
				continue
			}
			var n control.Network
			if n, unknown = network(); unknown == nil && len(rivals) < maxRivals && overlap(l, n.Rightful(takes(n, s.keys.Name(kv.Key), kv), lengths)...) {
				rivals = append(rivals, kv)
			}
		}
	})
	return rivals, stands, cmp.Or(err, unknown)
}

// maxRivals bounds the rivals that are looked at.
const maxRivals = 64

// overlap reports whether one of others overlaps a subnet of l.
func overlap(l control.Lease, others ...netip.Prefix) bool {
	return slices.ContainsFunc(others, func(p netip.Prefix) bool { return p.Overlaps(l.Subnet) || p.Overlaps(l.IPv6Subnet) })
}
