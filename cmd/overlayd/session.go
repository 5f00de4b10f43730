package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/underlay"
	"github.com/overlayd/overlayd/encap"
)

// session chooses the underlay, waits for a usable network config, opens the dataplane for it and
// runs both halves until ctx ends or one of them cannot go on.
func (d *daemon) session(ctx context.Context) error {
	if err := d.chooseUnderlay(); err != nil {
		return err
	}
	network, err := d.waitForNetwork(ctx)
	if err != nil {
		return err
	}
	claim, err := claimDevice(network.Backend.VNI)
	if err != nil {
		return err
	}
	defer claim.Close()
	enableForwarding(d.log)
	mtu := overlayMTU(network.Backend.MTU, d.iface)
	dp, mode, err := d.openDataplane(network, mtu)
	if errors.Is(err, errUnfit) {
		d.refused = refusal{network, err}
		return err
	}
	if err != nil {
		return fmt.Errorf("open dataplane: %w", err)
	}
	d.opened = true
	d.log.Info("dataplane", "mode", mode, "device", fmt.Sprintf("flannel.%d", network.Backend.VNI), "port", network.Backend.Port, "mtu", mtu)

	previous, err := control.ReadSubnetFile(d.subnetFile)
	if err != nil {
		d.log.Warn("previous subnet unknown", "err", err)
	}
	d.node.Previous = previous
	c := control.New(control.Config{
		Store:       d.store,
		Dataplane:   dp,
		Node:        d.node,
		Network:     network,
		MTU:         mtu,
		SubnetFile:  d.subnetFile,
		RenewMargin: time.Duration(d.renewMarginMin) * time.Minute,
		Log:         d.log,
		Ready:       d.tellReady,
	})
	// What this session opened is released when the group's context ends.
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return dp.Run(ctx) })
	group.Go(func() error { return c.Run(ctx) })
	group.Go(func() error { return d.drainOnSignal(ctx, c) })
	err = group.Wait()
	d.log.Info("stats", statsAttrs(dp.Stats())...)
	return err
}

func (d *daemon) chooseUnderlay() error {
	iface, err := underlay.Select(underlay.Options{Iface: d.options.iface, IfaceRegex: d.ifaceRegex, CanReach: d.canReach, PublicIP: d.public, IPv4: true})
	if err != nil {
		return fmt.Errorf("choose underlay interface: %w", err)
	}
	if iface != d.iface {
		d.log.Info("underlay", "interface", iface.Name, "address", iface.IPv4.Local, "public_ip", iface.IPv4.Public, "mtu", iface.MTU)
	}
	d.iface, d.node.PublicIP = iface, iface.IPv4.Public
	return nil
}

// statsAttrs lists the counters that are not zero, by the names that the README has.
func statsAttrs(s dataplane.Stats) (attrs []any) {
	add := func(name string, v uint64) {
		if v > 0 {
			attrs = append(attrs, name, v)
		}
	}
	add("tx_packets", s.TxPackets)
	add("tx_bytes", s.TxBytes)
	add("rx_packets", s.RxPackets)
	add("rx_bytes", s.RxBytes)
	for reason, n := range s.Drops {
		add("drops_"+dataplane.Drop(reason).String(), n)
	}
	add("tx_superpackets", s.Offload.TxSuperpackets)
	add("tx_segments", s.Offload.TxSegments)
	add("tx_batches", s.Offload.TxBatches)
	add("rx_superpackets", s.Offload.RxSuperpackets)
	add("rx_segments", s.Offload.RxSegments)
	add("rx_batches", s.Offload.RxBatches)
	add("fallbacks", s.Offload.Fallbacks)
	return attrs
}

func (d *daemon) tellReady() {
	d.log.Info("ready")
	sd.SdNotify(false, sd.SdNotifyReady)
}

// drainOnSignal gives the lease back when `overlayd drain` asks for it, and then
// ends the daemon.
func (d *daemon) drainOnSignal(ctx context.Context, c *control.Controller) error {
	select {
	case <-ctx.Done():
		return nil
	case <-d.drain:
		d.draining = true
	}
	if err := c.Drain(ctx); err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	return errDrained
}

// waitForNetwork writes the first config where it was given one, and asks until
// the store has a usable one. What the store contains never ends the daemon, and
// one state of it is said once a minute at most.
func (d *daemon) waitForNetwork(ctx context.Context) (control.Network, error) {
	const period, repeat = time.Second, time.Minute
	var said string
	var saidAt time.Time
	for {
		network, err := d.loadNetwork(ctx)
		if err == nil {
			return network, nil
		}
		if ctx.Err() == nil && (err.Error() != said || time.Since(saidAt) > repeat) {
			said, saidAt = err.Error(), time.Now()
			d.log.Error("not ready: waiting for the network config", "err", err)
		}
		select {
		case <-ctx.Done():
			return control.Network{}, ctx.Err()
		case <-d.drain:
			d.draining = true
			return control.Network{}, errors.New("asked to drain while waiting for the network config")
		case <-time.After(period):
		}
	}
}

func (d *daemon) loadNetwork(ctx context.Context) (control.Network, error) {
	if d.netConfig != nil {
		created, err := d.store.Init(ctx, d.netConfig)
		if err != nil {
			return control.Network{}, err
		}
		if created {
			d.log.Info("network config written", "key", d.etcdPrefix+"/config", "value", string(d.netConfig))
		}
	}
	network, err := d.store.Network(ctx)
	switch {
	case errors.Is(err, control.ErrNoNetwork):
		return network, fmt.Errorf("%w: put one under %s/config, or give --network to one daemon", err, d.etcdPrefix)
	case err != nil:
		return network, err
	case d.refused.err != nil && network == d.refused.network:
		return network, d.refused.err
	}
	return network, d.supported(network)
}

// supported refuses by name what this version or the chosen dataplane has not.
func (d *daemon) supported(n control.Network) error {
	switch b := n.Backend; {
	case n.EnableIPv6:
		return errors.New("network config: EnableIPv6: IPv6 overlays are not supported by this version")
	case !n.EnableIPv4:
		return errors.New("network config: EnableIPv4: false leaves no address family to serve")
	case d.dataplane == modeUserspace && b.GBP:
		return errors.New("network config: Backend.GBP: the userspace dataplane has no group policy: use --dataplane=kernel")
	case d.dataplane == modeUserspace && b.Learning:
		return errors.New("network config: Backend.Learning: the userspace dataplane does not learn addresses: use --dataplane=kernel")
	case b.VNI > maxVNI:
		return fmt.Errorf("network config: Backend.VNI: %d: want at most %d, or the device name flannel.<VNI> is too long", b.VNI, maxVNI)
	case n.Network.Contains(d.iface.IPv4.Local):
		return fmt.Errorf("network config: Network: %s contains this host's underlay address %s", n.Network, d.iface.IPv4.Local)
	}
	return nil
}

// maxVNI is the largest VNI that fits a device name of 15 bytes behind "flannel.".
const maxVNI = 9_999_999

// overlayMTU is what an inner packet may have: the configured underlay MTU, at
// most that of the interface, less the encapsulation.
func overlayMTU(configured int, iface underlay.Interface) int {
	mtu := iface.MTU
	if configured > 0 {
		mtu = min(mtu, configured)
	}
	return mtu - encap.Overhead(iface.IPv4.Local)
}
