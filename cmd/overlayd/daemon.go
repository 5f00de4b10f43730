package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
	"github.com/overlayd/overlayd/control/etcd/embedded"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// daemon is what lives as long as the process: the options, the store, who we are.
// A session comes and goes on top of it.
type daemon struct {
	*options
	log   *slog.Logger
	store *etcd.Store
	node  control.Node
	iface underlay.Interface // of the current session

	drain    chan os.Signal // SIGUSR1: give the lease back, then stop
	draining bool           // it came
	opened   bool           // a dataplane was open once: from now on nothing ends the daemon
	refused  refusal
}

// refusal is a network config that no dataplane here can carry, and why.
type refusal struct {
	network control.Network
	err     error
}

// runDaemon runs until ctx ends: it claims the subnet file, starts or opens the
// store, and runs sessions on it.
func runDaemon(ctx context.Context, o *options) (err error) {
	d := &daemon{options: o, log: o.logger(), drain: make(chan os.Signal, 1)}
	slog.SetDefault(d.log)
	signal.Notify(d.drain, unix.SIGUSR1)
	defer signal.Stop(d.drain)
	claim, err := claimNode(o.subnetFile)
	if other := new(runningError); errors.As(err, &other) {
		return err
	} else if err != nil {
		d.log.Warn("no node file: drain and cleanup cannot see this daemon, and after a crash its address is free only when its record has expired", "err", err)
	}
	defer claim.release()

	if err := d.describeNode(claim); err != nil {
		return err
	}

	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	if o.etcdEmbedded {
		stop, err := d.startEtcd(ctx, fail)
		if err != nil {
			return err
		}
		defer stop()
	}
	if ctx.Err() != nil {
		return nil // asked to stop before there was anything to stop
	}
	// Open asks nobody, so what it refuses is a flag or a file.
	if d.store, err = etcd.Open(ctx, o.etcdConfig(d.log)); err != nil {
		return usagef("etcd: %w", err)
	}
	defer d.store.Close()
	err = d.sessions(ctx)
	sd.SdNotify(false, sd.SdNotifyStopping)
	d.log.Info("stopped")
	if cause := context.Cause(ctx); errors.Is(cause, errEtcdDied) {
		return cause
	}
	return err
}

var errEtcdDied = errors.New("embedded etcd died")

// startEtcd starts the embedded server; it calls fail if that dies later.
func (d *daemon) startEtcd(ctx context.Context, fail context.CancelCauseFunc) (stop func(), err error) {
	server, err := embedded.Start(ctx, embedded.Config{Dir: d.etcdDataDir, ListenClient: d.etcdListenURL, Log: d.log})
	if ctx.Err() != nil {
		return func() {}, nil // asked to stop meanwhile
	}
	if err != nil {
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

func (d *daemon) describeNode(claim *nodeFile) error {
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read host name: %w", err)
	}
	d.node = control.Node{ID: newNodeID(), Name: name}
	if claim != nil {
		d.node.ID = claim.id
	}
	return nil
}

// sessions runs one session after the other until ctx ends. Only the first may
// end the daemon, and only if this machine lacks the interface or the dataplane:
// later whatever broke (somebody deleted the underlay link) is looked for anew.
func (d *daemon) sessions(ctx context.Context) error {
	const minPause, maxPause = 500 * time.Millisecond, 30 * time.Second
	for pause := minPause; ; {
		began := time.Now()
		err := d.session(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case d.draining:
			return d.giveBack(ctx, err)
		case errors.Is(err, errUnfit), errors.Is(err, control.ErrNetworkChanged):
			continue // waitForNetwork has the reason, or the new config
		case !d.opened:
			return err
		}
		if time.Since(began) > maxPause {
			pause = minPause
		}
		d.log.Error("session ended: starting it again", "err", err, "after", pause)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
}

// giveBack ends a drain: the subnet is nobody's, so its file goes. Where the session
// did not get to giving the lease back it is done here.
func (d *daemon) giveBack(ctx context.Context, err error) error {
	if !errors.Is(err, errDrained) {
		if _, err := releaseOf(ctx, d.store, d.iface.IPv4.Public); err != nil {
			return fmt.Errorf("drain: %w", err)
		}
	}
	if err := os.Remove(d.subnetFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// errDrained ends a session after the lease was given back.
var errDrained = errors.New("lease given back")
