package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// errUnderlayChanged ends a session whose dataplane has addresses or an interface that are no
// longer this host's.
var errUnderlayChanged = errors.New("the underlay has changed")

// ErrMoved is an underlay on another interface than before.
var ErrMoved = fmt.Errorf("%w to another interface", errUnderlayChanged)

// watchChanges takes over another MTU of the underlay and of the config, and ends the session with
// errUnderlayChanged or control.ErrNetworkChanged when anything else of them changes.
func (s *Session) watchChanges(ctx context.Context) error {
	n := s.network
	group, ctx := errgroup.WithContext(ctx)
	ifaces := make(chan underlay.Interface)
	group.Go(func() error {
		return underlay.Watch(ctx, n.chosenBy, s.iface, func(i underlay.Interface) {
			n.health.Carries(i, n.underlays(s.config, i)) // at once: what is wrong with the one before does not matter any more
			select {
			case ifaces <- i:
			case <-ctx.Done():
			}
		})
	})
	group.Go(func() error {
		inner, cancel := context.WithCancel(ctx)
		configs := n.watchConfig(inner)
		defer func() {
			cancel()
			if configs != nil {
				for range configs { // until it is closed
				}
			}
		}()
		return s.applyChanges(ctx, ifaces, configs, s.controller.SetMTU)
	})
	return group.Wait()
}

// watchNeeds takes over what this host needs of the underlay when that changes.
func (s *Session) watchNeeds(ctx context.Context) error {
	n := s.network
	now := n.node.Underlay
	now.Public = nil
	return fit.WatchNeeds(ctx, s.iface, n.reachesStore(), now, func(u control.Underlay) {
		level := slog.LevelDebug // an address or link more: mostly a bridge that somebody has made
		if !slices.Equal(u.Needs, now.Needs) || !slices.Equal(u.OnLink, now.OnLink) {
			level = slog.LevelInfo
		}
		now = u
		n.log.Log(ctx, level, "what this host needs of the underlay has changed: which leases can be used is decided again",
			"needs", u.Needs, "on_link", u.OnLink, "links", u.Links)
		u.Public = n.cfg.PeerCIDRs
		s.controller.SetUnderlay(u)
	})
}

// reachesStore says where this host reaches its store.
func (n *Network) reachesStore() fit.Store {
	s := fit.Store{Hosts: n.cfg.StoreHosts}
	if r, ok := n.store.(control.RemoteLister); ok {
		s.Remotes = r.Remotes
	}
	if r, ok := n.store.(control.StoreReporter); ok {
		s.Answers = func() bool { return r.Status().Connected }
	}
	return s
}

// applyChanges calls setMTU for each change that the session can take over, until there is another
// one or ctx ends.
func (s *Session) applyChanges(ctx context.Context, ifaces <-chan underlay.Interface, configs <-chan control.StoredNetwork, setMTU func(int)) error {
	n, config, iface := s.network, s.config, s.iface
	last := fit.MTU(config, iface)
	stood := time.NewTimer(0) // of a config that is held
	defer stood.Stop()
	stood.Stop()
	for {
		nextConfig, nextIface := config, iface
		select {
		case <-ctx.Done():
			return nil
		case <-stood.C:
			if n.held.network == (control.Network{}) {
				if wait := n.putConfigBack(ctx, config); wait > 0 {
					stood.Reset(wait)
				}
				continue
			}
			if n.heldStands(ctx) {
				why := cmp.Or(changed(config, n.held.network, nil, nil), control.ErrNetworkChanged)
				return fmt.Errorf("%w: it has stood for %s", why, time.Since(n.held.since).Round(time.Second))
			}
			stood.Reset(askAgain)
		case nextIface = <-ifaces:
		case got, ok := <-configs:
			if !ok {
				return nil // ctx has ended
			}
			stood.Stop()
			apply, wait := s.consider(ctx, iface, config, got)
			if apply {
				nextConfig = got.Network
			} else if wait > 0 {
				stood.Reset(wait)
			}
		}
		if nextConfig == config && nextIface == iface {
			continue
		}
		used, nextUsed := n.underlays(config, iface), n.underlays(config, nextIface)
		if err := changed(config, nextConfig, used, nextUsed); errors.Is(err, errUnderlayChanged) && iface.Name != nextIface.Name {
			return fmt.Errorf("%w: was %s, is %s", ErrMoved, placeOf(iface.Name, used), placeOf(nextIface.Name, nextUsed))
		} else if err != nil {
			return err
		}
		if iface.Name != nextIface.Name { // settings, and some rules of the guard and of the firewall, go by it
			return fmt.Errorf("%w: %s was renamed to %s", errUnderlayChanged, iface.Name, nextIface.Name)
		}
		if err := fit.CheckMTU(nextConfig, nextIface); err != nil {
			return fmt.Errorf("%w: %w", errUnderlayChanged, err)
		}
		config, iface = nextConfig, nextIface
		n.useConfig(config)
		s.link.Store(&nextIface)
		mtu := fit.MTU(config, iface)
		if mtu == last {
			continue
		}
		last = mtu
		n.cfg.StoreLog.Of(n.log).Info("MTU", "overlay", mtu, "interface", iface.Name, "underlay", iface.MTU, "configured", config.Backend.MTU)
		setMTU(mtu)
	}
}

// placeOf names an interface and its addresses.
func placeOf(name string, used []dataplane.Underlay) string {
	for _, u := range used {
		name += " " + u.Local.String()
	}
	return name
}

// encapsulates reports whether hosts encapsulate all packets of a network.
func encapsulates(n control.Network) bool { return n.Backend.IsVXLAN() && !n.Backend.DirectRouting }

// encapsulatedAlike is a change of the network config before and after which hosts encapsulate all packets.
type encapsulatedAlike struct{ error }

// Unwrap returns what has changed.
func (e encapsulatedAlike) Unwrap() error { return e.error }

// changed returns why a change needs another session; nil if it does not. An MTU that the overlay
// can have does not, nor do addresses of a family that it does not use.
func changed(config, nextConfig control.Network, used, nextUsed []dataplane.Underlay) error {
	config.Backend.MTU, config.Backend.Missing = nextConfig.Backend.MTU, nextConfig.Backend.Missing
	switch {
	case nextConfig != config && encapsulates(config) && encapsulates(nextConfig):
		return encapsulatedAlike{control.ErrNetworkChanged}
	case nextConfig != config:
		return control.ErrNetworkChanged
	case !slices.Equal(used, nextUsed):
		return fmt.Errorf("%w: was %v, is %v", errUnderlayChanged, used, nextUsed)
	}
	return nil
}
