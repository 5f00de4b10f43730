package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/cmd/internal/etcdchild"
	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/fixes"
	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/handover"
	"github.com/overlayd/overlayd/cmd/internal/logs"
	"github.com/overlayd/overlayd/cmd/internal/node"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/cmd/internal/stores"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/conns"
	"github.com/overlayd/overlayd/control/etcd/embedded"
	"github.com/overlayd/overlayd/control/garbage"
	"github.com/overlayd/overlayd/dataplane/capture"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// runDaemon runs the daemon until ctx ends, SIGUSR1 has drained it or SIGUSR2 has handed it over to
// the kernel. SIGHUP ends nothing: see reloader. f are the flags of o.
func runDaemon(ctx context.Context, o *flags.Flags, f *pflag.FlagSet) (err error) {
	if o.Etcd.Embedded {
		if err := embedded.CheckListen(o.Etcd.ListenURL); err != nil {
			return usagef("--etcd-listen-client-url: %w", err)
		}
	}
	if err := checkFiles(o); err != nil {
		return err
	}
	// Without this the first line that nobody reads ends the daemon. Ignored, the signal would be so in its child processes too.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	c := daemonConfig(o)
	slog.SetDefault(c.Log)
	net.DefaultResolver = (&conns.Dialer{Log: c.Log}).Names()
	go garbage.Bound(ctx, memory)
	if o.Kube.Enabled {
		klog.SetSlogLogger(c.Log) // client-go has one log per process
	}
	for _, w := range o.Warnings {
		c.Log.Warn(w.Text, "fix", w.Fix)
	}
	flags.WarnOfCertificates(c.Log, o.Certificates(), time.Now())
	if c.Hostname, err = os.Hostname(); err != nil {
		return fmt.Errorf("read host name: %w", err)
	}
	c.Keeper, c.Left = handover.OpenKeeper(c.Log)
	if os.Getenv("NOTIFY_SOCKET") != "" { // sd_notify(3)
		c.Notify = func(state string) { sd.SdNotify(false, state) }
	}
	if c.Watchdog, err = sd.SdWatchdogEnabled(false); err != nil {
		return usagef("WATCHDOG_USEC, WATCHDOG_PID: %w", err)
	}
	c.Captures = new(capture.Hub)
	process := status.Process{Host: c.Hostname, Version: version, PID: os.Getpid(), Start: time.Now()}
	c.Endpoints = endpoints(&o.Process, process)
	c.Admin.Routes = func(d *node.Daemon) []admin.Route { return adminRoutes(d, &c, process) }
	var d *node.Daemon
	c.Settled = func(port uint16) {
		giveUpRights(o, c, d, port)
		giveBackMemory(c.Log)
	}
	d = node.New(c)
	defer onSignal(unix.SIGHUP, (&reloader{c, d, o, f}).reload)()
	defer onSignal(unix.SIGUSR1, func() {
		c.Log.Info("SIGUSR1, as overlayd drain sends it: giving the subnet back, then stopping")
		d.Drain()
	})()
	defer onSignal(unix.SIGUSR2, func() {
		c.Log.Info("SIGUSR2, as overlayd drain --to=kernel sends it: handing over to the kernel, then stopping")
		if err := d.StopToKernel(); err != nil {
			c.Log.Error("not drained to the kernel", "err", err)
		}
	})()
	err = d.Run(ctx)
	switch {
	case err != nil || !o.Process.StandBy:
	case d.LeaveToHeir():
		standBy(ctx, &c)
	case d.LeftToKernel():
		c.Log.Info("the kernel forwards: standing by until this process is told to stop", "at_most", standByDrained)
		pace.Sleep(ctx, standByDrained, nil)
	}
	return err
}

// daemonConfig returns the config of a daemon with these flags, which can open its stores.
func daemonConfig(o *flags.Flags) node.Config {
	c := o.Config()
	c.Version = version
	c.StoreLog = logs.NewBound(c.Log)
	s := stores.New(o, c.StoreLog.Of(c.Log))
	c.OpenStore = func(ctx context.Context, network string, log *slog.Logger) (control.Store, error) {
		store, err := s.Open(ctx, network, log)
		return store, asUsage(err)
	}
	c.StoreHosts = s.Hosts()
	c.Certificates = o.Certificates
	if o.Network.Several() {
		c.OpenNetworks = func(ctx context.Context) (node.NetworkLister, error) {
			list, err := s.OpenNetworks(ctx)
			return list, asUsage(err)
		}
	}
	c.Fix = func(network string, err error) string { return fixes.Of(o, network, err) }
	if o.Etcd.Embedded {
		c.StartEtcd = func(ctx context.Context) node.Server {
			return etcdchild.Start(ctx, &o.Etcd, c.Log, func(err error) string { return fixes.Of(o, "", err) })
		}
	}
	return c
}

// onSignal calls what whenever a signal comes, until the function that it returns is called.
func onSignal(sig os.Signal, what func()) (stop func()) {
	signals, stopped := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(signals, sig)
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			select {
			case <-signals:
				what()
			case <-stopped:
				return
			}
		}
	})
	return func() {
		signal.Stop(signals)
		close(stopped)
		wait.Wait()
	}
}

// The values of --dataplane.
const (
	modeAuto      = string(fit.Auto)
	modeKernel    = string(fit.Kernel)
	modeUserspace = string(fit.Userspace)
)
