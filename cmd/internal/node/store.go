package node

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/subnetfile"
)

// watchConfig sends what the store has for a network config whenever it is something else, until ctx
// ends; then it closes the channel. It returns nil if the store does not report changes.
func (n *Network) watchConfig(ctx context.Context) <-chan control.StoredNetwork {
	if w, ok := n.store.(control.ConfigWatcher); ok {
		return w.WatchNetwork(ctx)
	}
	return nil
}

// releaseOwn gives back every lease that this host publishes, or has published under an earlier address, and returns their
// subnets. Its files say what is known of an earlier address; what they do not say is left to expire.
func (n *Network) releaseOwn(ctx context.Context, published []netip.Addr) (given []string, err error) {
	node := n.node
	node.Former = n.file.Former(published)
	node.Previous, _ = subnetfile.Read(n.subnetFile)
	return releaseOf(ctx, n.store, node)
}

// releaseOf gives back every lease that node publishes and returns their subnets.
func releaseOf(ctx context.Context, store control.Store, node control.Node) (given []string, err error) {
	p, ok := store.(control.Publisher)
	if !ok {
		return nil, nil
	}
	leases, err := p.Published(ctx, node)
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	for _, l := range leases {
		if err := store.Release(ctx, l); err != nil {
			return given, fmt.Errorf("give back %s: %w", l.CIDRs(), err)
		}
		given = append(given, l.CIDRs())
	}
	return given, nil
}
