package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// errNoUnderlay says that this host has no interface like the one asked for.
var errNoUnderlay = errors.New("choose underlay interface")

func selectUnderlay(ctx context.Context, o underlay.Options) (underlay.Interface, error) {
	iface, err := underlay.Select(ctx, o)
	if err != nil {
		return iface, &underlayError{err}
	}
	return iface, nil
}

// underlayError is an error of underlay.Select that names flags.
type underlayError struct{ err error }

func (e *underlayError) Error() string {
	flags := map[underlay.Field]string{
		underlay.FieldIface: "--iface", underlay.FieldIfaceRegex: "--iface-regex", underlay.FieldCanReach: "--iface-can-reach",
		underlay.FieldPublicIP: "--public-ip", underlay.FieldPublicIPv6: "--public-ipv6",
	}
	return fmt.Sprintf("%v: %s", errNoUnderlay, underlay.Describe(e.err, func(f underlay.Field) string { return flags[f] }))
}

func (e *underlayError) Unwrap() []error { return []error{errNoUnderlay, e.err} }

// findUnderlay finds an interface before it is known what it is to carry. Where there was one
// before, it waits for it: a cable is pulled, a driver is loaded anew.
func (n *network) findUnderlay(ctx context.Context) (underlay.Interface, error) {
	const period = time.Second
	for said := false; ; said = true {
		iface, err := selectUnderlay(ctx, n.underlay(control.Network{}))
		if err == nil || !n.opened {
			return iface, err
		}
		if !said && ctx.Err() == nil {
			n.log.Error("not ready: waiting for the underlay", "err", err)
		}
		select {
		case <-ctx.Done():
			return iface, ctx.Err()
		case <-n.drain:
			return iface, err
		case <-time.After(period):
		}
	}
}

// chooseUnderlay finds the interface and the addresses that carry config, and makes
// them those that this node publishes.
func (n *network) chooseUnderlay(ctx context.Context, config control.Network) error {
	o := n.underlay(config)
	v4, v6, err := n.publicIPs(ctx)
	if err != nil {
		return err
	}
	if v4.IsValid() {
		o.PublicIP = v4
	}
	if v6.IsValid() {
		o.PublicIPv6 = v6
	}
	iface, err := selectUnderlay(ctx, o)
	if err != nil {
		return err
	}
	n.chosenBy, n.node.PublicIP, n.node.PublicIPv6 = o, iface.IPv4.Public, iface.IPv6.Public
	if iface != n.iface {
		attrs := []any{"interface", iface.Name, "mtu", iface.MTU}
		for _, u := range iface.Underlays(config.EnableIPv4, config.EnableIPv6) {
			attrs = append(attrs, "address", u.Local, "public_ip", u.Public)
		}
		n.log.Info("underlay", attrs...)
	}
	n.iface = iface
	return nil
}

// underlays are what the dataplane of a network is opened with. Several networks of the userspace
// dataplane share sockets, whatever families they have: what one has no use for it does not publish.
func (n *network) underlays(config control.Network, iface underlay.Interface) []dataplane.Underlay {
	if n.several() && n.dataplane != modeKernel {
		return iface.Underlays(true, true)
	}
	return iface.Underlays(config.EnableIPv4, config.EnableIPv6)
}
