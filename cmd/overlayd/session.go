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
)

// session waits for a usable network config, chooses the underlay, opens the dataplane for both and
// runs dataplane and controller until ctx ends, one of them cannot go on, or config or
// underlay are not what they were: then the next session has the new ones. Only their
// MTU changes within a session.
func (n *network) session(ctx context.Context) error {
	// A flag that names no interface of this host is said before the store is asked.
	first, err := n.findUnderlay(ctx)
	if err != nil {
		return err
	}
	if n.iface == (underlay.Interface{}) { // a drain that comes before there is a config gives back what these publish
		n.node.PublicIP, n.node.PublicIPv6 = first.IPv4.Public, first.IPv6.Public
	}
	config, err := n.waitForNetwork(ctx)
	if err != nil {
		return err
	}
	giveBack, err := n.overlays.take(n.name, config)
	if err != nil {
		return err
	}
	defer giveBack()
	claim, err := n.takeDevice(ctx, config)
	if err != nil {
		return err
	}
	defer claim.Close()
	enableForwarding(n.log, config)
	mtu := overlayMTU(config, n.iface)
	o, err := n.openOverlay(config, mtu)
	if errors.Is(err, errUnfit) {
		n.refused = refusal{config, err, time.Now()}
		return err
	}
	if err != nil {
		return fmt.Errorf("open dataplane: %w", err)
	}
	defer o.Close()
	n.opened = true
	n.log.Info("dataplane", "mode", o.mode, "vni", config.Backend.VNI, "port", config.Backend.Port, "mtu", mtu)

	ready := make(chan struct{})
	c := n.newController(config, mtu, o, func() { close(ready) })
	// What this session opened is released when the group's context ends.
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return o.Run(ctx) })
	group.Go(func() error { return c.Run(ctx) })
	group.Go(func() error { return n.tellReady(ctx, ready) })
	group.Go(func() error { return n.drainOnSignal(ctx, c) })
	group.Go(func() error { return n.followChanges(ctx, config, c) })
	err = group.Wait()
	n.log.Info("stats", statsAttrs(o.Stats())...)
	return err
}

// newController makes the controller of a session, which acquires the lease when it runs.
func (n *network) newController(config control.Network, mtu int, o *overlay, ready func()) *control.Controller {
	previous, err := control.ReadSubnetFile(n.subnetFile)
	if err != nil {
		n.log.Warn("previous subnet unknown", "err", err)
	}
	n.node.Previous = previous
	return control.New(control.Config{
		Store:           n.store,
		Overlay:         o,
		Node:            n.node,
		Network:         config,
		MTU:             mtu,
		SubnetFile:      n.subnetFile,
		IPMasq:          n.ipMasq,
		WorkloadAddress: n.workloadAddress,
		RenewMargin:     time.Duration(n.renewMarginMin) * time.Minute,
		Log:             n.log,
		Ready:           ready,
	})
}

// tellReady tells systemd, the health endpoint and the store when all works.
func (n *network) tellReady(ctx context.Context, ready <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return nil
	case <-ready:
	}
	n.log.Info("ready")
	// Of several networks the first counts: systemd would end all for one that never is ready.
	if n.health.setReady(n.name, true) || n.several() {
		sd.SdNotify(false, sd.SdNotifyReady)
	}
	return n.markReady(ctx)
}

// drainOnSignal gives the lease back when `overlayd drain` asks for it, and then
// ends the session.
func (n *network) drainOnSignal(ctx context.Context, c *control.Controller) error {
	select {
	case <-ctx.Done():
		return nil
	case <-n.drain:
	}
	if err := c.Drain(ctx); err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	return errDrained
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
	add("tx_write_errors", s.TxWriteErrors)
	add("tx_superpackets", s.Offload.TxSuperpackets)
	add("tx_segments", s.Offload.TxSegments)
	add("tx_batches", s.Offload.TxBatches)
	add("rx_superpackets", s.Offload.RxSuperpackets)
	add("rx_segments", s.Offload.RxSegments)
	add("rx_batches", s.Offload.RxBatches)
	add("fallbacks", s.Offload.Fallbacks)
	return attrs
}
