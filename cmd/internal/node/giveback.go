package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/leftovers"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/subnetfile"
)

// The errors that end a session of a daemon that drains.
var (
	errDrained = errors.New("lease given back")
	errNoLease = errors.New("asked to drain before there was a lease") // the store may have that of an earlier run
)

// giveBack ends a drain: the subnet is nobody's, so its file goes. If the session ended before it
// gave the lease back, that is done here, as soon as the store answers.
func (n *Network) giveBack(ctx context.Context, err error) error {
	again := pace.Backoff{Low: 100 * time.Millisecond, High: 2 * time.Second}
	for !errors.Is(err, errDrained) {
		if err = n.giveBackOwn(ctx); err == nil {
			break
		}
		if errors.Is(err, leftovers.ErrFlanneldRuns) || errors.Is(err, ErrAliveElsewhere) { // an error would have the service manager start the daemon again
			n.log.Warn("stopping without giving a lease back: it is not this daemon's", n.attrs(err)...)
			return nil
		}
		n.warnOnce("give lease back: trying again", err)
		if !pace.Sleep(ctx, again.Next(), nil) {
			return nil // it ends by itself
		}
	}
	n.removeRules() // they would masquerade between pods once this host has another subnet
	if err := os.Remove(n.subnetFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := n.file.Drained(); err != nil {
		n.log.Warn("node file not written: overlayd drain may say that the lease was not given back", "err", err)
	}
	return nil
}

// giveBackOnce is giveBack of a network that is not served, as its overlay cannot be opened. It is tried once: the drain of the other networks does not wait for it.
func (n *Network) giveBackOnce(ctx context.Context) error {
	if err := n.claim(); err != nil {
		return err
	}
	defer n.file.Release()
	defer n.closeStore()
	if err := n.giveBackOwn(ctx); err != nil {
		return err
	}
	return n.giveBack(ctx, errDrained)
}

// giveBackOwn gives back what this host has in the store, without a session that knows it.
func (n *Network) giveBackOwn(ctx context.Context) error {
	if err := n.openStore(ctx); err != nil {
		return err
	}
	config, err := n.store.Network(ctx)
	if err != nil && !isUnusable(err) {
		return err
	}
	if !n.node.PublicIP.IsValid() && !n.node.PublicIPv6.IsValid() { // no session has begun
		if err := n.chooseUnderlay(ctx, config); err != nil {
			return err
		}
	}
	public := slices.DeleteFunc([]netip.Addr{n.node.PublicIP, n.node.PublicIPv6}, func(a netip.Addr) bool { return !a.IsValid() })
	_, err = n.releaseOwn(ctx, config, public)
	return err
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
	if err := n.checkFlanneld(networks); err != nil {
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

// checkFlanneld refuses to give away what is a flanneld's by now. One that this process may not look at is known by what it does.
func (n *Network) checkFlanneld(networks []netip.Prefix) error {
	hinted := len(n.beside.Warnings()) > 0 || !n.file.HasWritten(n.subnetFile)
	return leftovers.CheckFlanneld(n.subnetFile, networks, hinted)
}

// checkAlone refuses to give back the lease of a daemon that is alive with another node file, or on another host with a copy of this one's.
func (n *Network) checkAlone(ctx context.Context, published []netip.Addr) error {
	s, ok := n.store.(control.LiveNodeFinder)
	if !ok {
		return nil
	}
	for _, public := range published {
		host, lives, err := s.OtherNode(ctx, n.node, public)
		if err != nil {
			return err
		}
		if lives {
			return fmt.Errorf("%w: %s on host %s", ErrAliveElsewhere, public, host)
		}
	}
	return nil
}
