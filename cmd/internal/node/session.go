package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/leftovers"
	"github.com/overlayd/overlayd/cmd/internal/overlay"
	"github.com/overlayd/overlayd/cmd/internal/parts"
	"github.com/overlayd/overlayd/cmd/internal/probe"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane/inherit"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/subnetfile"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// Session is one network config on one underlay, with the overlay that carries it and the lease
// that this node has in it. It ends when either changes in anything but its MTU. Its fields do
// not change while it runs, but for those that say what it counted and how its interface is now.
type Session struct {
	network    *Network
	config     control.Network
	iface      underlay.Interface
	began      time.Time
	parts      parts.List // of overlay
	overlay    *overlay.Overlay
	controller *controller.Controller
	prober     *probe.Prober // nil: nobody asks the peers

	link atomic.Pointer[underlay.Interface] // iface as it is now, with another MTU; nil: as it was

	before status.Totals // what its dataplane had counted already for the session before it

	over  atomic.Bool // it is not the session of the snapshot any more: set once
	final sync.Once
	last  status.Totals // what its dataplane had counted then; final sets it, when it is over
	sum   status.Totals // what it counted; likewise
}

// runSession waits for a usable network config, chooses the underlay, opens the overlay for both
// and runs overlay and controller until ctx ends, one of them cannot go on, or config or underlay
// are no longer what they were: then the next session has the new ones.
func (n *Network) runSession(ctx context.Context) error {
	// A wrong name of an interface is reported before the store is asked.
	first, err := n.findUnderlay(ctx)
	if err != nil {
		return err
	}
	if n.iface == (underlay.Interface{}) { // a drain before there is a config gives back the leases of these addresses
		n.node.PublicIP, n.node.PublicIPv6 = first.IPv4.Public, first.IPv6.Public
	}
	config, err := n.waitForConfig(ctx)
	if err != nil {
		return err
	}
	if err := n.yieldToServed(config); err != nil {
		return err
	}
	giveBack, err := n.daemon.served.Add(n.name, config)
	if err != nil {
		return err
	}
	defer giveBack()
	if n.kept != nil && !n.kept.carries(config) {
		n.endKept(n.filesOf(config, n.iface)...)
	}
	if err := n.takeDevice(ctx, config); err != nil {
		return err
	}
	defer n.forgetFiles(config) // after the overlay was closed
	if n.node.Underlay, err = fit.Needs(ctx, n.iface, n.reachesStore()); err != nil && ctx.Err() == nil {
		n.log.Warn("the gateways of this host are not known: a subnet that holds one is not refused", "err", err)
	}
	n.node.Underlay.Public = n.cfg.PeerCIDRs
	s := &Session{network: n, config: config, iface: n.iface, began: time.Now()}
	s.parts = s.carriedBy()
	mtu := fit.MTU(config, n.iface)
	s.overlay, err = overlay.Open(n.log, n.attrs, n.daemon.specs(s, mtu))
	if errors.Is(err, parts.ErrUnfit) {
		n.refused = refusal{config, err, time.Now()}
		return err
	}
	if err != nil {
		return overlayError{error: fmt.Errorf("open dataplane: %w", parts.NameHolder(config.Backend.Port, err))}
	}
	defer s.overlay.Close()
	n.removeHeld(ctx)
	n.endKept() // what an overlay without forwarding does not take
	n.opened = true
	n.inForce(ctx, config)
	if !n.cfg.several() {
		n.daemon.estate.Drop("the network config is another one", inherit.IsTraffic)
	}
	s.logBackend(mtu)
	err = s.run(ctx, mtu)
	n.outdated = errors.Is(err, control.ErrNetworkChanged)
	n.follows.noteEnd(time.Since(s.began), n.outdated)
	s.settleGuard(err)
	n.sessionLog().Info("stats", s.statsAttrs()...)
	return err
}

// logBackend says what carries the packets of the network.
func (s *Session) logBackend(mtu int) {
	log, b := s.network.sessionLog(), s.config.Backend
	switch b.Type {
	case control.BackendHostGW:
		log.Info("backend host-gw: routes lead to the peers, and no dataplane is used, whichever is asked for", "mtu", mtu)
		return
	case control.BackendAlloc:
		log.Info("backend alloc: a subnet is leased, and nothing leads to those of others", "mtu", mtu)
		return
	}
	log.Info("dataplane", "mode", s.overlay.Mode(), "vni", b.VNI, "port", b.Port, "mtu", mtu)
	if b.Missing {
		log.Warn("the network config has no Backend, which is vxlan here: a flanneld would run udp, and the two could not reach each other",
			"fix", `write "Backend": {"Type": "vxlan"} into the network config`)
	}
}

// run runs the overlay, the controller and what watches for changes, until ctx ends or one of them does. The
// overlay ends last.
func (s *Session) run(ctx context.Context, mtu int) error {
	n := s.network
	ready := make(chan struct{})
	s.controller = n.newController(s.config, mtu, s.overlay, func() { close(ready) })
	s.prober = s.newProber()
	n.publish(snapshot{session: s})
	opened := time.Now()
	rest := func(ctx context.Context) error {
		err := s.control(ctx, ready)
		if ctx.Err() == nil { // else the overlay cannot go on, or nobody goes on with it
			s.keepForwarding(err)
		}
		return err
	}
	return pace.Last(ctx, rest, func(ctx context.Context) error {
		if err := s.overlay.Run(ctx); err != nil {
			return overlayError{err, time.Since(opened)}
		}
		return nil
	})
}

// control runs all but the overlay.
func (s *Session) control(ctx context.Context, ready <-chan struct{}) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.controller.Run(ctx) })
	group.Go(func() error { return s.tellReady(ctx, ready) })
	group.Go(func() error { return s.leaveFiles(ctx, ready) })
	group.Go(func() error { return s.drainOnRequest(ctx) })
	group.Go(func() error { return s.watchChanges(ctx) })
	group.Go(func() error { return s.watchNeeds(ctx) })
	group.Go(func() error { return s.askAddresses(ctx) })
	group.Go(func() error { return s.network.health.Run(ctx) })
	group.Go(func() error { s.network.beside.Run(ctx, s.subnets); return nil })
	group.Go(func() error { return s.keepClaim(ctx) })
	if s.prober != nil {
		group.Go(func() error { s.prober.Run(ctx); s.network.heard = s.prober.Heard(); return nil })
	}
	return group.Wait()
}

// newController makes the controller of a session, which acquires the lease when it runs.
func (n *Network) newController(config control.Network, mtu int, o *overlay.Overlay, ready func()) *controller.Controller {
	previous, err := subnetfile.Read(n.subnetFile)
	if err != nil {
		n.log.Warn("previous subnet unknown", "err", err)
	}
	n.node.Previous, n.node.Userspace = previous, o.Mode() == fit.Userspace
	known := n.lengths
	n.node.Lengths = &known
	n.lengths.AddNetwork(config)
	n.node.Former, _ = n.file.Publish(n.published(config)) // settleFile tries again, and warns
	return controller.New(controller.Config{
		Store:              n.store,
		Overlay:            parts.Naming{Overlay: o, Port: config.Backend.Port},
		Node:               n.node,
		Network:            config,
		MTU:                mtu,
		SubnetFile:         n.subnetFile,
		WroteSubnetFile:    n.wroteSubnetFile,
		RestoredSubnetFile: n.beside.Hint,
		IPMasq:             n.cfg.Rules.Masquerade,
		WorkloadAddress:    n.cfg.WorkloadAddress,
		RenewMargin:        n.cfg.RenewMargin,
		SharedMACs:         o.Mode() == fit.Userspace,
		Log:                n.cfg.StoreLog.Of(n.log),
		Ready:              ready,
		Fix:                n.fix,
	})
}

// tellReady tells the health endpoint, the service manager and the store when everything works.
func (s *Session) tellReady(ctx context.Context, ready <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return nil
	case <-ready:
	}
	n := s.network
	n.retireGuards() // those that an overlay without a guard leaves
	n.daemon.settled.Do(func() {
		if n.cfg.Settled != nil {
			n.cfg.Settled(s.config.Backend.Port)
		}
	})
	if s.overlay.Mode() == fit.Userspace {
		n.daemon.policy.batch(n.log)
	}
	n.publish(snapshot{session: s, ready: time.Now()})
	n.sessionLog().Info("ready") // and so is /readyz, for those who read the log
	// Of several networks the first counts: the service manager would end all of them because of
	// one that is never ready.
	if n.daemon.Ready() || n.cfg.several() {
		n.daemon.manager.tell(sd.SdNotifyReady)
	}
	n.remember(n.left) // without the guards of earlier sessions
	m, ok := n.store.(control.ReadyMarker)
	if !ok {
		return nil
	}
	if err := m.MarkReady(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// drainOnRequest gives the lease back when the daemon is to drain, and then ends the session.
func (s *Session) drainOnRequest(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.network.daemon.drain:
	}
	if err := s.network.checkFlanneld(s.subnets()); err != nil {
		return err // giveBack says so
	}
	if err := s.controller.Drain(ctx); err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	if s.controller.Status().Released {
		return errDrained
	}
	return s.giveBackOwn(ctx)
}

// giveBackOwn gives back the lease of an earlier run, of which alone the session knows as long as the store is away. It forwards until then.
func (s *Session) giveBackOwn(ctx context.Context) error {
	for again := (pace.Backoff{Low: 100 * time.Millisecond, High: 2 * time.Second}); ; {
		err := s.network.giveBackOwn(ctx)
		switch {
		case err == nil:
			return errDrained
		case errors.Is(err, leftovers.ErrFlanneldRuns), errors.Is(err, ErrAliveElsewhere):
			return errNoLease // giveBack says so
		}
		s.network.warnOnce("give lease back: trying again", err)
		if !pace.Sleep(ctx, again.Next(), nil) {
			return errNoLease
		}
	}
}

// subnets are this node's own, as far as they are known.
func (s *Session) subnets() (own []netip.Prefix) {
	if c := s.controller.Status(); c.Held {
		own = leaseStatus(c.Lease).Subnets
	}
	return own
}

// statsAttrs lists the counters that are not zero.
func (s *Session) statsAttrs() (attrs []any) {
	t := s.carried()
	if !t.Carried {
		return nil
	}
	for _, c := range status.Counters(s.stats(t)) {
		if c.Value > 0 {
			attrs = append(attrs, c.Name, c.Value)
		}
	}
	return attrs
}
