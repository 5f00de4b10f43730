package etcd

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
)

// pageSize is how many entries one Range returns: about 2 MB of real ones.
const pageSize = 10000

// list calls page with all entries below P/subnets/, in key order and as they
// stood at one revision, and returns the header of that revision.
func (s *Store) list(ctx context.Context, page func([]*mvccpb.KeyValue)) (*pb.ResponseHeader, error) {
	return s.listRange(ctx, "list leases", prefixRange(s.keys.subnets()), 0, page)
}

// listRange is list for any keys, as they stood at a revision; 0: the present one.
func (s *Store) listRange(ctx context.Context, what string, keys keyRange, revision int64, page func([]*mvccpb.KeyValue)) (at *pb.ResponseHeader, err error) {
	from := keys.from
	for {
		opts := []clientv3.OpOption{clientv3.WithRange(keys.end), clientv3.WithLimit(pageSize), clientv3.WithRev(revision)}
		var resp *clientv3.GetResponse
		err := s.call(ctx, what, func(ctx context.Context, c *clientv3.Client) (err error) {
			resp, err = c.Get(ctx, from, opts...)
			return err
		})
		if err != nil {
			return nil, err
		}
		if at == nil {
			at = resp.Header
			if revision == 0 {
				revision = at.Revision
			}
			s.noteAnswer(ctx, at.Revision, nil)
		}
		page(resp.Kvs)
		if !resp.More || len(resp.Kvs) == 0 {
			return at, nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// Published implements control.Publisher: it returns the leases that node has written under whatever
// public IP, and its reservations. If there are none of the former, its leases are those with its
// public IPs, for they may be of a flanneld on its host, or of an earlier ID; else those are of a
// host that had its address before.
func (s *Store) Published(ctx context.Context, node control.Node) (leases []control.Lease, err error) {
	own := control.Lease{PublicIP: node.PublicIP, PublicIPv6: node.PublicIPv6}
	tag := leaseTag(node.ID)
	wrote := func(l control.Lease) bool { return node.ID != "" && leaseID(l.Handle).hasTag(tag) }
	_, err = s.list(ctx, func(kvs []*mvccpb.KeyValue) {
		for _, kv := range kvs {
			if l, err := s.keys.parse(kv); err == nil && (wrote(l) || l.SamePublicIP(own)) {
				leases = append(leases, l)
			}
		}
	})
	if slices.ContainsFunc(leases, wrote) {
		leases = slices.DeleteFunc(leases, func(l control.Lease) bool { return !wrote(l) && l.Handle != 0 })
	}
	return leases, err
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
	tag := leaseTag(a.node.ID)
	var ips [][]byte
	for _, ip := range [...]netip.Addr{a.node.PublicIP, a.node.PublicIPv6} {
		if ip.IsValid() {
			ips = append(ips, []byte(ip.String()))
		}
	}
	_, err := a.list(ctx, func(kvs []*mvccpb.KeyValue) {
		for _, kv := range kvs {
			before := len(c.taken)
			c.taken = control.AppendTaken(c.taken, n, a.keys.name(kv.Key), kv.Value)
			c.taken = control.AppendPublic(c.taken, n, kv.Value)
			named := slices.ContainsFunc(ips, func(ip []byte) bool { return bytes.Contains(kv.Value, ip) })
			wrote := leaseID(kv.Lease).hasTag(tag)
			if kv.Lease != 0 && !named && !wrote && !slices.ContainsFunc(c.taken[before:], a.hadBefore) {
				continue // reading the value of every lease would be most of the work; reservations are few, in whatever spelling
			}
			l, err := a.keys.parse(kv)
			if err != nil {
				continue
			}
			switch a.node.Ownership(n, a.vteps, l, wrote) {
			case control.Own:
				c.own = append(c.own, ownEntry{Lease: l})
			case control.OwnUnlessLive:
				doubtful = append(doubtful, l)
			}
		}
	})
	for _, l := range doubtful {
		if err == nil {
			c.own, err = a.appendVacated(ctx, c.own, l)
		}
	}
	if err == nil {
		c.taken, err = a.appendRevoked(ctx, c.taken, n)
	}
	if err != nil {
		return census{}, fmt.Errorf("look for a free subnet: %w", err)
	}
	return c, nil
}

// appendRevoked appends the subnets that were revoked of this node, which it is not to get again.
func (a *acquisition) appendRevoked(ctx context.Context, taken []netip.Prefix, n control.Network) ([]netip.Prefix, error) {
	revoked, err := a.revocations(ctx)
	for _, l := range revoked {
		if a.node.Ownership(n, a.vteps, l, false) != control.NotOwn {
			taken = append(taken, l.Subnet, l.IPv6Subnet)
		}
	}
	return taken, err
}

func (a *acquisition) hadBefore(p netip.Prefix) bool { return slices.Contains(a.node.Previous, p) }

// appendVacated appends l to own if no other live node publishes its public IP, and for
// as long as none does.
func (a *acquisition) appendVacated(ctx context.Context, own []ownEntry, l control.Lease) ([]ownEntry, error) {
	key := a.keys.node(l.Identity())
	got, err := a.get(ctx, "read node record", key)
	if err != nil {
		return own, err
	}
	var revision int64 // 0: there is no record
	if len(got.Kvs) > 0 {
		if _, live := otherNode(got.Kvs[0], a.node.ID); live {
			return own, nil
		}
		revision = got.Kvs[0].ModRevision
	}
	unchanged := clientv3.Compare(clientv3.ModRevision(key), "=", revision)
	return append(own, ownEntry{l, []clientv3.Cmp{unchanged}}), nil
}

// takes is control.AppendTaken or control.AppendHeld.
type takes func(taken []netip.Prefix, n control.Network, key string, value []byte) []netip.Prefix

// rivals returns the keys of the entries that take a part of l's subnets and are older than
// l. An l without a CreateRevision is younger than all.
func (s *Store) rivals(ctx context.Context, l control.Lease, takes takes) (keys []string, err error) {
	var candidates []*mvccpb.KeyValue
	_, err = s.list(ctx, func(kvs []*mvccpb.KeyValue) {
		for _, kv := range kvs {
			if l.CreateRevision != 0 && kv.CreateRevision >= l.CreateRevision {
				continue
			}
			if v4, v6, err := control.ParseKey(s.keys.name(kv.Key)); err == nil && overlap(l, v4, v6) {
				candidates = append(candidates, kv)
			}
		}
	})
	if err != nil || len(candidates) == 0 {
		return nil, err
	}
	n, err := s.Network(ctx) // without it nobody can say what an entry takes
	if err != nil {
		return nil, err
	}
	for _, kv := range candidates {
		if name := s.keys.name(kv.Key); overlap(l, takes(nil, n, name, kv.Value)...) {
			keys = append(keys, name)
		}
	}
	return keys, nil
}

// overlap reports whether one of others overlaps a subnet of l.
func overlap(l control.Lease, others ...netip.Prefix) bool {
	return slices.ContainsFunc(others, func(p netip.Prefix) bool { return p.Overlaps(l.Subnet) || p.Overlaps(l.IPv6Subnet) })
}
