package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// waitForConfig writes the first config if it was given one, and asks until the store has a usable
// one and the underlay for it is chosen. Nothing that the store contains ends the daemon, and one
// state of it is logged once a minute at most.
func (n *Network) waitForConfig(ctx context.Context) (control.Network, error) {
	const period = time.Second
	notices := pace.Notices{Repeat: time.Minute}
	for {
		config, err := n.usableConfig(ctx)
		if err == nil || errors.Is(err, errNoUnderlay) {
			return config, err
		}
		if ctx.Err() == nil {
			if due, _ := notices.Due(time.Now(), pace.Notice{Text: control.Kind(err)}); len(due) > 0 {
				n.log.Error("not ready: waiting for the network config", n.attrs(err)...)
			}
		}
		if !pace.Sleep(ctx, period, n.daemon.drain) {
			if ctx.Err() != nil {
				return control.Network{}, ctx.Err()
			}
			return control.Network{}, errors.New("asked to drain while waiting for the network config")
		}
	}
}

// usableConfig returns the config once this host can carry it, and chooses the underlay for it.
func (n *Network) usableConfig(ctx context.Context) (control.Network, error) {
	config, err := n.loadConfig(ctx)
	if err != nil {
		return config, err
	}
	if err := n.chooseUnderlay(ctx, config); err != nil {
		return config, err
	}
	return config, n.supported(config)
}

// loadConfig reads the config, and before that writes the first one if the user gave one and the
// store takes it. A config that was refused a moment ago is refused again.
func (n *Network) loadConfig(ctx context.Context) (control.Network, error) {
	if w, ok := n.store.(control.ConfigWriter); ok && n.cfg.FirstConfig != nil {
		created, err := w.Init(ctx, n.cfg.FirstConfig)
		if err != nil {
			return control.Network{}, err
		}
		if created {
			n.log.Info("network config written", "value", string(n.cfg.FirstConfig))
		}
	}
	config, err := n.store.Network(ctx)
	if err != nil {
		return config, err
	}
	return config, n.refused.of(config)
}

// supported refuses, with its key, the first setting that the chosen dataplane lacks or this host
// cannot carry.
func (n *Network) supported(c control.Network) error {
	switch b := c.Backend; {
	case !b.IsVXLAN():
		if err := n.supportedPlain(c); err != nil {
			return err
		}
	case n.cfg.Mode == Userspace && b.GBP:
		return fmt.Errorf("network config: Backend.GBP: the userspace dataplane has no group policy: %w", ErrKernelOnly)
	case n.cfg.Mode == Userspace && b.Learning:
		return fmt.Errorf("network config: Backend.Learning: the userspace dataplane does not learn addresses: %w", ErrKernelOnly)
	case b.VNI > n.maxVNI(c):
		return fmt.Errorf("network config: Backend.VNI: %d: want at most %d, or the name of the device is too long", b.VNI, n.maxVNI(c))
	}
	return checkMTU(c, n.iface)
}

// supportedPlain is supported for the backends without encapsulation.
func (n *Network) supportedPlain(c control.Network) error {
	if n.cfg.WorkloadAddress {
		return fmt.Errorf("network config: Backend.Type %q has no overlay device, which the address of a workload would be on", c.Backend.Type)
	}
	for _, u := range n.iface.Underlays(c.EnableIPv4, c.EnableIPv6) {
		if c.Backend.Type == control.BackendHostGW && u.Public != u.Local {
			return fmt.Errorf("network config: Backend.Type %q: this host publishes %s, and its own address is %s: routes cannot lead through a NAT", c.Backend.Type, u.Public, u.Local)
		}
	}
	return nil
}

// ErrKernelOnly says that only the kernel dataplane can carry a network.
var ErrKernelOnly = errors.New("only the kernel dataplane can carry it")
