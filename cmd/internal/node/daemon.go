package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	sd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
)

// Daemon is what lives as long as the process and is shared by the networks that it serves:
// the list of them, their UDP ports, the embedded etcd, the health endpoint.
type Daemon struct {
	cfg     Config
	process control.Process
	expects *expected
	ports   portPool
	served  servedConfigs
	claimed claimedDevices
	parts   func(s *Session, mtu int) []partSpec // the list of parts of an overlay

	drain     chan struct{} // closed by Drain
	drainOnce sync.Once

	end atomic.Pointer[context.CancelCauseFunc] // of Run; nil before it
}

// New returns a Daemon that does nothing before Run.
func New(cfg Config) *Daemon {
	return &Daemon{cfg: cfg, process: thisProcess(cfg.Version), expects: newExpected(), parts: (*Session).parts, drain: make(chan struct{})}
}

// Drain makes Run give the leases back and return. It may be called at any time, more than once.
func (d *Daemon) Drain() { d.drainOnce.Do(func() { close(d.drain) }) }

// Status returns how each network is, by name. It may be called at any time.
func (d *Daemon) Status() []status.Network { return d.expects.status() }

// Ready reports whether it is known which networks there are, and all of them are ready.
func (d *Daemon) Ready() bool { return d.expects.ready() }

// Run claims the subnet file, starts what the networks share, and serves them until ctx ends or
// the daemon has drained. It is called once.
func (d *Daemon) Run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	d.end.Store(&fail)
	var only *Network
	if !d.cfg.several() {
		only = d.newNetwork("")
		if err := only.claim(); err != nil {
			return err
		}
		defer only.release()
	}
	stopHealth, err := d.serveHealth(fail)
	if err != nil {
		return err
	}
	defer stopHealth()
	if d.cfg.StartEtcd != nil {
		stop, err := d.startEtcd(ctx, fail)
		if err != nil {
			return err
		}
		defer stop()
	}
	switch {
	case ctx.Err() != nil: // asked to stop, or told that there is no reason to begin
	case only != nil:
		err = only.serve(ctx)
		only.stopped()
	default:
		err = d.serveNetworks(ctx)
	}
	d.cfg.notify(sd.SdNotifyStopping)
	d.cfg.Log.Info("stopped")
	if cause := context.Cause(ctx); errors.Is(cause, errEtcdDied) || errors.Is(cause, errHealthDied) || errors.Is(cause, errHandover) {
		return cause
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

var (
	errEtcdDied   = errors.New("embedded etcd died")
	errHealthDied = errors.New("health endpoint died")
)

// serveHealth answers on the listener of the health endpoint until stop is called. It calls fail
// if the server dies before that.
func (d *Daemon) serveHealth(fail context.CancelCauseFunc) (stop func(), err error) {
	if d.cfg.Listen == nil {
		return func() {}, nil
	}
	l, err := d.cfg.Listen()
	if err != nil {
		return nil, err
	}
	return status.Serve(l, status.Handler(d.Ready), func(err error) {
		fail(fmt.Errorf("%w: %w", errHealthDied, err))
	}), nil
}

// startEtcd starts the embedded server. It calls fail if that dies later.
func (d *Daemon) startEtcd(ctx context.Context, fail context.CancelCauseFunc) (stop func(), err error) {
	server, err := d.cfg.StartEtcd(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return func() {}, nil // asked to stop meanwhile
	case err != nil:
		return nil, fmt.Errorf("start embedded etcd: %w", err)
	}
	var watch sync.WaitGroup
	stopped := make(chan struct{})
	watch.Go(func() {
		select {
		case err := <-server.Err():
			fail(fmt.Errorf("%w: %w", errEtcdDied, err))
		case <-stopped:
		}
	})
	return func() {
		close(stopped)
		watch.Wait()
		if err := server.Stop(); err != nil {
			d.cfg.Log.Error("embedded etcd did not stop cleanly", "err", err)
		}
	}, nil
}
