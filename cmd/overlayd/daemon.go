package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
	"github.com/overlayd/overlayd/control/etcd/embedded"
	"github.com/overlayd/overlayd/dataplane/underlay"
	"github.com/overlayd/overlayd/encap"
)

// daemon is what lives as long as the process: the options, the underlay, the
// store. A session comes and goes on top of it.
type daemon struct {
	*options
	log   *slog.Logger
	iface underlay.Interface
	node  control.Node
	store *etcd.Store
	drain chan os.Signal // SIGUSR1: give the lease back, then stop
	ready bool           // readiness was told once
}

// runDaemon runs until ctx ends. Its order is the order of what each step needs:
// the claim to the subnet file, the underlay, the store, then sessions.
func runDaemon(ctx context.Context, o *options) (err error) {
	d := &daemon{options: o, log: o.logger(), drain: make(chan os.Signal, 1)}
	slog.SetDefault(d.log)
	signal.Notify(d.drain, unix.SIGUSR1)
	defer signal.Stop(d.drain)
	claim, err := takeLock(o.subnetFile)
	if other := new(runningError); errors.As(err, &other) {
		return err
	} else if err != nil {
		d.log.Warn("no process id file: drain and cleanup cannot see this daemon", "err", err)
	}
	defer claim.release()

	if d.iface, err = underlay.Select(underlay.Options{
		Iface: o.iface, IfaceRegex: o.ifaceRegex, CanReach: o.canReach, PublicIP: o.public,
	}); err != nil {
		return fmt.Errorf("choose underlay interface: %w", err)
	}
	d.log.Info("underlay", "interface", d.iface.Name, "address", d.iface.Addr, "public_ip", d.iface.Public, "mtu", d.iface.MTU)
	if err := d.describeNode(); err != nil {
		return err
	}

	if o.etcdEmbedded {
		server, err := embedded.Start(ctx, embedded.Config{Dir: o.etcdDataDir, ListenClient: o.etcdListenURL, Log: d.log})
		if err != nil {
			return fmt.Errorf("start embedded etcd: %w", err)
		}
		defer func() {
			if err := server.Stop(); err != nil {
				d.log.Error("embedded etcd did not stop in good order", "err", err)
			}
		}()
	}
	if d.store, err = etcd.Open(ctx, o.etcdConfig(d.log)); err != nil {
		return fmt.Errorf("open etcd: %w", err)
	}
	defer d.store.Close()
	err = d.sessions(ctx)
	sd.SdNotify(false, sd.SdNotifyStopping)
	d.log.Info("stopped")
	return err
}

func (o *options) etcdConfig(log *slog.Logger) etcd.Config {
	return etcd.Config{
		Endpoints: o.etcdEndpoints,
		Prefix:    o.etcdPrefix,
		CertFile:  o.etcdCertFile,
		KeyFile:   o.etcdKeyFile,
		CAFile:    o.etcdCAFile,
		Username:  o.etcdUsername,
		Password:  o.etcdPassword,
		LeaseTTL:  o.leaseTTL,
		Log:       log,
	}
}

func (d *daemon) describeNode() error {
	id, err := nodeID()
	if err != nil {
		return fmt.Errorf("identify node: %w", err)
	}
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read host name: %w", err)
	}
	d.node = control.Node{ID: id, Name: name, PublicIP: d.iface.Public}
	return nil
}

// sessions runs one session after the other until ctx ends. Only the first may
// end the daemon, and only before its dataplane is open: later whatever broke
// (somebody deleted the device) is made anew.
func (d *daemon) sessions(ctx context.Context) error {
	const pause = 500 * time.Millisecond
	for {
		err := d.session(ctx)
		switch {
		case ctx.Err() != nil, errors.Is(err, errDrained):
			return nil
		case err != nil && !d.ready:
			return err
		}
		d.log.Error("session ended: starting it again", "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// errDrained ends the daemon after the lease was given back.
var errDrained = errors.New("lease given back")

// session waits for a usable network config, opens the dataplane for it and
// runs both halves until ctx ends or one of them cannot go on.
func (d *daemon) session(ctx context.Context) error {
	network, err := d.waitForNetwork(ctx)
	if err != nil {
		return err
	}
	enableForwarding(d.log)
	mtu := overlayMTU(network.Backend.MTU, d.iface)
	dp, mode, err := d.openDataplane(network, mtu)
	if err != nil {
		return fmt.Errorf("open dataplane: %w", err)
	}
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
	return group.Wait()
}

func (d *daemon) tellReady() {
	d.ready = true
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
			return control.Network{}, errDrained // there is no lease yet to give back
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
	case n.Network.Contains(d.iface.Addr):
		return fmt.Errorf("network config: Network: %s contains this host's underlay address %s", n.Network, d.iface.Addr)
	}
	return nil
}

// overlayMTU is what an inner packet may have: the configured underlay MTU, at
// most that of the interface, less the encapsulation.
func overlayMTU(configured int, iface underlay.Interface) int {
	mtu := iface.MTU
	if configured > 0 {
		mtu = min(mtu, configured)
	}
	return mtu - encap.Overhead(iface.Addr)
}
