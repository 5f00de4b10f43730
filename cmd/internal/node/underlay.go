package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/subnetfile"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// errNoUnderlay says that this host has no interface such as the one asked for.
var errNoUnderlay = errors.New("choose underlay interface")

// selectUnderlay is underlay.SelectKeeping what the last session had, with errors that a caller can tell from others.
func (n *Network) selectUnderlay(ctx context.Context, o underlay.Options) (underlay.Interface, error) {
	iface, err := underlay.SelectKeeping(ctx, o, n.iface)
	if err != nil {
		return iface, fmt.Errorf("%w: %w", errNoUnderlay, err)
	}
	return iface, nil
}

// findUnderlay finds an interface before it is known what it is to carry. If there was one before,
// it waits for one: a cable may be pulled, a driver loaded again.
func (n *Network) findUnderlay(ctx context.Context) (underlay.Interface, error) {
	const period = time.Second
	for logged := false; ; logged = true {
		iface, err := n.selectUnderlay(ctx, n.underlayOptions(control.Network{}))
		if err == nil {
			n.health.Carries(iface, nil) // of which families is not known yet
		}
		if err == nil || !n.opened {
			return iface, err
		}
		n.health.Look()
		if !logged && ctx.Err() == nil {
			n.log.Error("not ready: waiting for the underlay", n.attrs(err)...)
		}
		if !pace.Sleep(ctx, period, n.daemon.drain) {
			return iface, cmp.Or(ctx.Err(), err)
		}
	}
}

// underlayOptions say what to look for to carry c: the zero Network if that is not known yet.
func (n *Network) underlayOptions(c control.Network) underlay.Options {
	o := n.cfg.Underlay
	o.IPv4, o.IPv6 = c.EnableIPv4, c.EnableIPv6
	return o
}

// chooseUnderlay finds the interface and the addresses that carry config, and makes them those
// that this node publishes.
func (n *Network) chooseUnderlay(ctx context.Context, config control.Network) error {
	o := n.underlayOptions(config)
	v4, v6, err := n.storedAddresses(ctx)
	if err != nil {
		return err
	}
	if v4.IsValid() {
		o.PublicIP = v4
	}
	if v6.IsValid() {
		o.PublicIPv6 = v6
	}
	iface, err := n.selectUnderlay(ctx, o)
	if err != nil {
		return err
	}
	n.chosenBy, n.node.PublicIP, n.node.PublicIPv6 = o, iface.IPv4.Public, iface.IPv6.Public
	n.node.Source, n.node.SourceV6 = sourceOf(iface.IPv4), sourceOf(iface.IPv6)
	if iface != n.iface {
		attrs := []any{"interface", iface.Name, "mtu", iface.MTU}
		for _, u := range iface.Underlays(config.EnableIPv4, config.EnableIPv6) {
			attrs = append(attrs, "address", u.Local, "public_ip", u.Public)
		}
		n.cfg.StoreLog.Of(n.log).Info("underlay", attrs...)
	}
	n.iface = iface
	n.health.Carries(iface, n.underlays(config, iface))
	return nil
}

// storedAddresses returns the addresses that the store has for this node, which win over those from the user. If the store does not
// answer soon, a node that has run before goes on with what the store has told this process last, and askAddresses asks on.
func (n *Network) storedAddresses(ctx context.Context) (v4, v6 netip.Addr, err error) {
	a, ok := n.store.(control.AddressSource)
	n.unasked = false
	if !ok {
		return v4, v6, nil
	}
	soon, cancel := context.WithTimeout(ctx, askAgain/2)
	defer cancel()
	if own, _ := subnetfile.Read(n.subnetFile); len(own) == 0 {
		soon = ctx
	}
	if v4, v6, err = a.PublicIPs(soon); err == nil {
		n.stored = [2]netip.Addr{v4, v6}
	}
	if r, ok := n.store.(control.StoreReporter); err == nil || soon == ctx || ctx.Err() != nil || !ok || r.Status().Connected {
		return v4, v6, err
	}
	n.unasked = true
	return n.stored[0], n.stored[1], nil
}

// askAddresses ends a session that began before the store said which addresses it is to have, if it has others.
func (s *Session) askAddresses(ctx context.Context) error {
	n := s.network
	if !n.unasked {
		return nil
	}
	a := n.store.(control.AddressSource)
	for again := (pace.Backoff{Low: askAgain, High: 30 * time.Second}); ; {
		v4, v6, err := a.PublicIPs(ctx)
		if err == nil {
			n.stored = [2]netip.Addr{v4, v6} // the next session may have no answer soon enough either
		}
		if err == nil && (v4.IsValid() && v4 != n.node.PublicIP || v6.IsValid() && v6 != n.node.PublicIPv6) {
			return fmt.Errorf("%w: the store has other addresses for this node", errUnderlayChanged)
		}
		if err == nil || !pace.Sleep(ctx, again.Next(), nil) {
			return nil
		}
	}
}

// sourceOf returns the source address of what leaves by e. It is not valid if that is the public address.
func sourceOf(e underlay.End) netip.Addr {
	if e.Local == e.Public {
		return netip.Addr{}
	}
	return e.Local
}

// underlays returns what the dataplane of a network is opened with. Several networks of the
// userspace dataplane share sockets, so these are of both families; what a network does not need
// it does not publish.
func (n *Network) underlays(config control.Network, iface underlay.Interface) []dataplane.Underlay {
	if n.cfg.several() && n.cfg.Mode != fit.Kernel {
		return iface.Underlays(true, true)
	}
	return iface.Underlays(config.EnableIPv4, config.EnableIPv6)
}

// host is what a network config has to fit.
func (n *Network) host() fit.Host {
	return fit.Host{Mode: n.cfg.Mode, WorkloadAddress: n.cfg.WorkloadAddress, Underlay: n.iface}
}
