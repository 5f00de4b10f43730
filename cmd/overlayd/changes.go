package main

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/control"
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
		if err := changed(config, nextConfig, iface, nextIface); err != nil {
			return err
		}
		config, iface = nextConfig, nextIface
		mtu := overlayMTU(config, iface)
		n.log.Info("MTU", "overlay", mtu, "interface", iface.Name, "underlay", iface.MTU, "configured", config.Backend.MTU)
		setMTU(mtu)
	}
}

// changed says what of a change takes another session: all but an MTU that the overlay can have.
func changed(config, nextConfig control.Network, iface, nextIface underlay.Interface) error {
	config.Backend.MTU, iface.MTU = nextConfig.Backend.MTU, nextIface.MTU
	switch {
	case nextConfig != config:
		return control.ErrNetworkChanged
	case nextIface != iface:
		return fmt.Errorf("%w: now %s with %v", errUnderlayChanged, nextIface.Name, nextIface.Underlays(config.EnableIPv4, config.EnableIPv6))
	}
	if err := checkMTU(nextConfig, nextIface); err != nil {
		return fmt.Errorf("%w: %w", errUnderlayChanged, err)
	}
	return nil
}
