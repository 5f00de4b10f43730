package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// errUnderlayChanged ends a session whose dataplane has addresses or an interface that are
// not the host's any more.
var errUnderlayChanged = errors.New("the underlay has changed")

// followChanges takes over another MTU of the underlay and of the config, and ends the session
// with errUnderlayChanged or control.ErrNetworkChanged when anything else of them changes.
func (n *network) followChanges(ctx context.Context, config control.Network, c *control.Controller) error {
	group, ctx := errgroup.WithContext(ctx)
	ifaces := make(chan underlay.Interface)
	group.Go(func() error {
		return underlay.Watch(ctx, n.chosenBy, n.iface, func(i underlay.Interface) {
			select {
			case ifaces <- i:
			case <-ctx.Done():
			}
		})
	})
	group.Go(func() error {
		inner, cancel := context.WithCancel(ctx)
		configs := n.configs(inner)
		defer func() {
			cancel()
			for range configs { // until it is closed
			}
		}()
		return n.follow(ctx, config, ifaces, configs, c.SetMTU)
	})
	return group.Wait()
}

// follow calls setMTU for each change that it can take over, until there is another or ctx ends.
func (n *network) follow(ctx context.Context, config control.Network, ifaces <-chan underlay.Interface, configs <-chan control.Network, setMTU func(int)) error {
	iface := n.iface
	last := overlayMTU(config, iface)
	for {
		nextConfig, nextIface := config, iface
		select {
		case <-ctx.Done():
			return nil
		case nextIface = <-ifaces:
		case got, ok := <-configs:
			if !ok {
				return nil // ctx has ended
			}
			nextConfig = got
		}
		if nextConfig == config && nextIface == iface {
			continue
		}
		if err := changed(config, nextConfig, n.underlays(config, iface), n.underlays(config, nextIface)); err != nil {
			return err
		}
		if err := checkMTU(nextConfig, nextIface); err != nil {
			return fmt.Errorf("%w: %w", errUnderlayChanged, err)
		}
		config, iface = nextConfig, nextIface
		mtu := overlayMTU(config, iface)
		if mtu == last {
			continue
		}
		last = mtu
		n.log.Info("MTU", "overlay", mtu, "interface", iface.Name, "underlay", iface.MTU, "configured", config.Backend.MTU)
		setMTU(mtu)
	}
}

// changed says what of a change takes another session: all but an MTU that the overlay can
// have, and addresses of a family that it does not use.
func changed(config, nextConfig control.Network, used, nextUsed []dataplane.Underlay) error {
	config.Backend.MTU = nextConfig.Backend.MTU
	switch {
	case nextConfig != config:
		return control.ErrNetworkChanged
	case !slices.Equal(used, nextUsed):
		return fmt.Errorf("%w: was %v, is %v", errUnderlayChanged, used, nextUsed)
	}
	return nil
}
