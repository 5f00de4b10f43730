package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/underlay"
	"github.com/overlayd/overlayd/encap"
)

// waitForNetwork writes the first config where it was given one, and asks until
// the store has a usable one and the underlay for it is chosen. What the store contains
// never ends the daemon, and one state of it is said once a minute at most.
func (n *network) waitForNetwork(ctx context.Context) (control.Network, error) {
	const period, repeat = time.Second, time.Minute
	var said string
	var saidAt time.Time
	for {
		config, err := n.loadNetwork(ctx)
		if err == nil {
			err = n.chooseUnderlay(ctx, config)
			if errors.Is(err, errNoUnderlay) {
				return config, err
			}
		}
		if err == nil {
			err = n.supported(config)
		}
		if err == nil {
			return config, nil
		}
		if ctx.Err() == nil && (err.Error() != said || time.Since(saidAt) > repeat) {
			said, saidAt = err.Error(), time.Now()
			n.log.Error("not ready: waiting for the network config", "err", err)
		}
		select {
		case <-ctx.Done():
			return control.Network{}, ctx.Err()
		case <-n.drain:
			return control.Network{}, errors.New("asked to drain while waiting for the network config")
		case <-time.After(period):
		}
	}
}

func (n *network) loadNetwork(ctx context.Context) (control.Network, error) {
	if s, ok := n.store.(control.ConfigWriter); ok && n.netConfig != nil {
		created, err := s.Init(ctx, n.netConfig)
		if err != nil {
			return control.Network{}, err
		}
		if created {
			n.log.Info("network config written", "key", n.prefixOf(n.name)+"/config", "value", string(n.netConfig))
		}
	}
	config, err := n.store.Network(ctx)
	switch {
	case errors.Is(err, control.ErrNoNetwork) && n.kube:
		return config, err
	case errors.Is(err, control.ErrNoNetwork):
		return config, fmt.Errorf("%w: put one under %s/config, or give --network to one daemon", err, n.prefixOf(n.name))
	case err != nil:
		return config, err
	}
	return config, n.refused.of(config)
}

// supported refuses by name what the chosen dataplane has not, or this host cannot carry.
func (n *network) supported(c control.Network) error {
	switch b := c.Backend; {
	case n.dataplane == modeUserspace && b.GBP:
		return errors.New("network config: Backend.GBP: the userspace dataplane has no group policy: use --dataplane=kernel")
	case n.dataplane == modeUserspace && b.Learning:
		return errors.New("network config: Backend.Learning: the userspace dataplane does not learn addresses: use --dataplane=kernel")
	case b.VNI > n.maxVNI(c):
		return fmt.Errorf("network config: Backend.VNI: %d: want at most %d, or the name of the device is too long", b.VNI, n.maxVNI(c))
	}
	for _, p := range c.Prefixes() {
		for _, u := range n.iface.Underlays(c.EnableIPv4, c.EnableIPv6) {
			if p.Contains(u.Local) {
				return fmt.Errorf("network config: Network: %s contains this host's underlay address %s", p, u.Local)
			}
		}
	}
	return checkMTU(c, n.iface)
}

// checkMTU refuses an overlay whose packets are smaller than every link must carry:
// RFC 791 section 3.2, RFC 8200 section 5.
func checkMTU(c control.Network, iface underlay.Interface) error {
	version, least := 4, 68
	if c.EnableIPv6 {
		version, least = 6, 1280
	}
	if mtu := overlayMTU(c, iface); mtu < least {
		return fmt.Errorf("network config: EnableIPv%d: the overlay has an MTU of %d here, and IPv%d needs %d: the MTU of %s is %d, Backend.MTU is %d",
			version, mtu, version, least, iface.Name, iface.MTU, c.Backend.MTU)
	}
	return nil
}

// maxVNI is the largest VNI that fits a device name of 15 bytes behind "flannel.", and
// behind "flannel-v6.", which the kernel dataplane has on an IPv6 underlay.
func (n *network) maxVNI(c control.Network) uint32 {
	if n.dataplane == modeKernel && slices.ContainsFunc(n.iface.Underlays(c.EnableIPv4, c.EnableIPv6), func(u dataplane.Underlay) bool { return u.Local.Is6() }) {
		return 9_999
	}
	return 9_999_999
}

// overlayMTU is what an inner packet may have: the configured underlay MTU, at
// most that of the interface, less the encapsulation of the family that has most.
func overlayMTU(c control.Network, iface underlay.Interface) int {
	mtu := iface.MTU
	if c.Backend.MTU > 0 {
		mtu = min(mtu, c.Backend.MTU)
	}
	overhead := 0
	for _, u := range iface.Underlays(c.EnableIPv4, c.EnableIPv6) {
		overhead = max(overhead, encap.Overhead(u.Local))
	}
	return mtu - overhead
}
