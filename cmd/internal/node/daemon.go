package node

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/time/rate"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/handover"
	"github.com/overlayd/overlayd/cmd/internal/overlay"
	"github.com/overlayd/overlayd/cmd/internal/probe"
	"github.com/overlayd/overlayd/cmd/internal/sharedport"
	"github.com/overlayd/overlayd/cmd/internal/status"
)

// Daemon is what lives as long as the process and is shared by the networks that it serves:
// the list of them, their UDP ports, the embedded etcd, the endpoints.
type Daemon struct {
	cfg     Config
	estate  handover.Estate // of the daemon before this one
	expects *expected
	ports   sharedport.Pool
	served  fit.Served
	claimed sharedport.Claimed
	probes  *rate.Limiter                            // of the probes of all networks
	specs   func(s *Session, mtu int) []overlay.Spec // the list of parts of an overlay

	guardOff atomic.Bool // no network has a guard

	endpoints []*endpoint // of cfg, in their order

	giver   giver
	policy  policy
	manager notifier
	admin   atomic.Pointer[admin.Server] // nil: there is no admin socket now

	drain     chan struct{} // closed by Drain
	drainOnce sync.Once
	settled   sync.Once // a network was ready

	replaced     atomic.Bool // see LeaveToHeir
	leftToKernel atomic.Bool

	run  atomic.Pointer[running] // nil before Run
	etcd atomic.Pointer[Server]  // nil: this process runs no etcd, or has not started it yet
}

// New returns a Daemon that does nothing before Run.
func New(cfg Config) *Daemon {
	d := &Daemon{cfg: cfg, expects: newExpected(), probes: probe.NewLimit(), specs: (*Session).specs, drain: make(chan struct{})}
	d.estate.Log, d.estate.Keeper, d.estate.Process = cfg.Log, cfg.Keeper, handover.ThisProcess(cfg.Version)
	d.estate.Add(cfg.Left)
	for _, e := range cfg.Endpoints {
		d.endpoints = append(d.endpoints, &endpoint{Endpoint: e, status: status.Endpoint{Name: e.Name, Address: e.At}})
	}
	d.ports.Estate, d.ports.Forget = &d.estate, d.forget
	d.giver.daemon, d.giver.patience = d, givePatience
	d.manager.log, d.manager.send = cfg.Log, cfg.Notify
	return d
}

// Drain makes Run give the leases back and return. It may be called at any time, more than once.
func (d *Daemon) Drain() { d.drainOnce.Do(func() { close(d.drain) }) }

// Status returns how each network is, by name. It may be called at any time.
func (d *Daemon) Status() []status.Network {
	all := d.expects.status()
	if e := d.etcd.Load(); e != nil {
		s := (*e).Status()
		for i := range all {
			all[i].Etcd = &s
		}
	}
	if d.cfg.Certificates != nil && len(all) > 0 {
		certificates := d.cfg.Certificates()
		for i := range all {
			all[i].Certificates = certificates
		}
	}
	return all
}

// Ready reports whether it is known which networks there are, and all of them are ready.
func (d *Daemon) Ready() bool { return d.expects.ready() }

// Checks returns what Ready is made of.
func (d *Daemon) Checks() []status.Check { return status.Checks(d.expects.isKnown(), d.Status()) }

// Run claims the subnet file, starts what the networks share, and serves them until ctx ends or
// the daemon has drained. It is called once.
func (d *Daemon) Run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	d.run.Store(&running{fail, ctx.Err})
	defer d.estate.DropLater(d.expects.wait)()
	defer d.stopAdmin(ctx) // if it does not get further
	var only *Network
	if !d.cfg.several() {
		only = d.newNetwork("")
		if err := only.claimOrReplace(ctx); err != nil {
			if ctx.Err() != nil {
				return nil // asked to stop meanwhile
			}
			return err
		}
		defer only.release()
		defer d.stopAdmin(ctx) // while nobody else can claim the subnet file
	} else if d.cfg.Replace {
		if err := d.replaceOthers(ctx); err != nil {
			return err
		}
	}
	d.serveAdmin(ctx, false)
	defer d.tellOthers(ctx)()
	stopEndpoints, err := d.serveEndpoints(ctx, fail)
	defer stopEndpoints()
	if err != nil {
		return err
	}
	if only != nil {
		defer d.serveHandover(only)()
	}
	if d.cfg.StartEtcd != nil {
		defer d.startEtcd(ctx)()
	}
	switch {
	case ctx.Err() != nil: // asked to stop, or told that there is no reason to begin
	case only != nil:
		if err = only.serve(ctx); context.Cause(ctx) != errReplaced {
			only.stopped()
		}
	default:
		err = d.serveNetworks(ctx)
	}
	d.manager.tell(sd.SdNotifyStopping)
	d.replaced.Store(context.Cause(ctx) == errReplaced)
	if cause := context.Cause(ctx); errors.Is(cause, errNotReplaced) || errors.Is(cause, errEndpointDied) || errors.Is(cause, errHandover) {
		err = cause
	}
	if err == nil { // else the last line is the error
		d.cfg.Log.Info("stopped")
	}
	return err
}

func (d *Daemon) draining() bool {
	select {
	case <-d.drain:
		return true
	default:
		return false
	}
}

// startEtcd starts the embedded server. Nothing that happens to it ends the daemon: the overlay goes on without.
func (d *Daemon) startEtcd(ctx context.Context) (stop func()) {
	server := d.cfg.StartEtcd(ctx)
	d.etcd.Store(&server)
	return func() {
		if err := server.Stop(); err != nil {
			d.cfg.Log.Error("embedded etcd did not stop cleanly", "err", err)
		}
	}
}
