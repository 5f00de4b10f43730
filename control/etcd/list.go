package etcd

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"

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
	from, end := s.keys.subnets(), clientv3.GetPrefixRangeEnd(s.keys.subnets())
	var at *pb.ResponseHeader
	for {
		opts := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(pageSize)}
		if at != nil {
			opts = append(opts, clientv3.WithRev(at.Revision))
		}
		var resp *clientv3.GetResponse
		err := s.call(ctx, "list leases", func(ctx context.Context, c *clientv3.Client) (err error) {
			resp, err = c.Get(ctx, from, opts...)
			return err
		})
		if err != nil {
			return nil, err
		}
		if at == nil {
			at = resp.Header
		}
		page(resp.Kvs)
		if !resp.More || len(resp.Kvs) == 0 {
			return at, nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// census is what an acquisition must know of all leases.
type census struct {
	taken []netip.Prefix  // see control.AppendTaken
	own   []control.Lease // those with the node's public IP
}

func (s *Store) census(ctx context.Context, n control.Network, node control.Node) (census, error) {
	var c census
	ip := []byte(nodeIP(node).String())
	_, err := s.list(ctx, func(kvs []*mvccpb.KeyValue) {
		for _, kv := range kvs {
			c.taken = control.AppendTaken(c.taken, n, s.keys.name(kv.Key), kv.Value)
			if !bytes.Contains(kv.Value, ip) {
				continue // reading the value of every lease would be most of the work
			}
			if l, err := s.keys.parse(kv); err == nil && isOwn(l, node) {
				c.own = append(c.own, l)
			}
		}
	})
	if err != nil {
		return census{}, fmt.Errorf("look for a free subnet: %w", err)
	}
	return c, nil
}

// isOwn reports whether a lease belongs to the node's public IP. IPv6 decides only
// where the node has no IPv4: all IPv6-only leases have the same IPv4 address, none.
func isOwn(l control.Lease, node control.Node) bool {
	if node.PublicIP.IsValid() {
		return l.PublicIP == node.PublicIP
	}
	return !l.PublicIP.IsValid() && l.PublicIPv6 == node.PublicIPv6
}
