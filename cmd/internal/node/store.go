package node

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/overlayd/overlayd/cmd/internal/leftovers"
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
// subnets. Its files say what is known of an earlier address; what they do not say is left to expire. What has become another daemon's it
// refuses: [leftovers.ErrFlanneldRuns], [ErrAliveElsewhere].
func (n *Network) releaseOwn(ctx context.Context, config control.Network, published []netip.Addr) (given []string, err error) {
	node := n.node
	node.Former = n.file.Former(published)
	node.Previous, _ = subnetfile.Read(n.subnetFile)
	var leases []control.Lease
	if p, ok := n.store.(control.Publisher); ok {
		if leases, err = p.Published(ctx, node); err != nil {
			return nil, fmt.Errorf("list leases: %w", err)
		}
	}
	networks := config.Prefixes()
	for _, l := range leases { // the config may not be known
		networks = append(networks, leaseStatus(l).Subnets...)
	}
	if err := leftovers.CheckFlanneld(n.subnetFile, networks); err != nil {
		return nil, err
	}
	if err := n.checkAlone(ctx, published); err != nil {
		return nil, err
	}
	for _, l := range leases {
		if err := n.store.Release(ctx, l); err != nil {
			return given, fmt.Errorf("give back %s: %w", l.CIDRs(), err)
		}
		given = append(given, l.CIDRs())
	}
	return given, nil
}
