package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdkeys"
)

// OtherNode implements control.LiveNodeFinder, by node records. Alive is a node whose record does not expire, see pulseOf: one with this
// node's ID, which may be this host before it was booted, has to be seen to extend it. A flanneld leaves no such sign.
func (s *Store) OtherNode(ctx context.Context, node control.Node, public netip.Addr) (host string, lives bool, err error) {
	got, err := s.rpc.Get(ctx, "read node record", s.keys.Node(public))
	if err != nil || len(got.Kvs) == 0 {
		return "", false, err
	}
	var other etcdkeys.Record
	notRead := json.Unmarshal(got.Kvs[0].Value, &other)
	sameID := other.ID == node.ID
	if sameID && !etcdkeys.RecordOf(node).Elsewhere(got.Kvs[0].Value) {
		return "", false, nil
	}
	switch p, stays, err := s.pulseOf(ctx, got.Kvs[0], sameID); {
	case err != nil || p == dead:
		return "", false, err
	case p == unsure:
		return "", false, fmt.Errorf("the node record of %s is of host %.64q, which has this node's ID: it takes up to %s to see whether that host lives", public, other.Name, stays)
	case notRead != nil:
		return "", false, fmt.Errorf("read node record of %s: %w", public, notRead)
	}
	return printable(other.Name), true, nil
}
