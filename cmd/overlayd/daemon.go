package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/control/etcd/embedded"
)

// daemon is what lives as long as the process and is shared by the networks that it
// serves: the options, the name of the host, the embedded etcd, the health endpoint.
type daemon struct {
	*options
	log      *slog.Logger
	hostname string
	health   *health
	ports    portPool
	overlays overlays
	drain    chan struct{} // closed by SIGUSR1: give the leases back, then stop
}

// runDaemon runs until ctx ends: it claims the subnet file, starts what the networks
// share, and serves them.
func runDaemon(ctx context.Context, o *options) (err error) {
	d := &daemon{options: o, log: o.logger(), health: newHealth(), drain: make(chan struct{})}
	slog.SetDefault(d.log)
	if o.kube {
		keepKubeSmall(d.log)
	}
	if o.passwordShows {
		d.log.Warn("the etcd password is on the command line, where everybody on this host sees it",
			"fix", "--etcd-password-file, or the variable OVERLAYD_ETCD_PASSWORD")
	}
	if d.hostname, err = os.Hostname(); err != nil {
		return fmt.Errorf("read host name: %w", err)
	}
	defer d.awaitDrain()()

	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var only *network
	if !o.several() {
		only = d.newNetwork("")
		if err := only.claim(); err != nil {
			return err
		}
		defer only.release()
	}
	stopHealth, err := d.health.serve(o.healthzIP, o.healthzPort, fail)
	if err != nil {
		return err
	}
	defer stopHealth()
	if o.etcdEmbedded {
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
	default:
		err = d.serveNetworks(ctx)
	}
	sd.SdNotify(false, sd.SdNotifyStopping)
	d.log.Info("stopped")
	if cause := context.Cause(ctx); errors.Is(cause, errEtcdDied) || errors.Is(cause, errHealthDied) {
		return cause
	}
	return err
}

// awaitDrain closes d.drain when SIGUSR1 comes, until the function that it returns is called.
func (d *daemon) awaitDrain() (stop func()) {
	signals, stopped := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(signals, unix.SIGUSR1)
	var wait sync.WaitGroup
	wait.Go(func() {
		select {
		case <-signals:
			close(d.drain)
		case <-stopped:
		}
	})
	return func() {
		signal.Stop(signals)
		close(stopped)
		wait.Wait()
	}
}

func (d *daemon) draining() bool {
	select {
	case <-d.drain:
		return true
	default:
		return false
	}
}

var errEtcdDied = errors.New("embedded etcd died")

// startEtcd starts the embedded server; it calls fail if that dies later.
func (d *daemon) startEtcd(ctx context.Context, fail context.CancelCauseFunc) (stop func(), err error) {
	server, err := embedded.Start(ctx, embedded.Config{Dir: d.etcdDataDir, ListenClient: d.etcdListenURL, Prefix: d.etcdPrefix, Log: d.log})
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
			d.log.Error("embedded etcd did not stop in good order", "err", err)
		}
	}, nil
}
