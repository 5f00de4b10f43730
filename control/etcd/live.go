package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/overlayd/overlayd/control/etcdkeys"
)

// LiveNode returns the ID and the host name of the node that publishes an address
// and was alive within the last Config.NodeTTL, see pulseOf; both are empty if no node does. A
// flanneld leaves no such sign.
func (s *Store) LiveNode(ctx context.Context, publicIP netip.Addr) (id, name string, err error) {
	got, err := s.rpc.Get(ctx, "read node record", s.keys.Node(publicIP))
	if err != nil || len(got.Kvs) == 0 {
		return "", "", err
	}
	if p, _, err := s.pulseOf(ctx, got.Kvs[0], false); p == dead || err != nil {
		return "", "", err
	}
	var n etcdkeys.Record
	if err := json.Unmarshal(got.Kvs[0].Value, &n); err != nil {
		return "", "", fmt.Errorf("read node record of %s: %w", publicIP, err)
	}
	return n.ID, n.Name, nil
}
