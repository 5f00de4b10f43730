package main

import (
	"context"
	"log/slog"
	"net/url"
	"os"
	"runtime/debug"

	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/logs"
	"github.com/overlayd/overlayd/cmd/internal/node"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
	"github.com/overlayd/overlayd/control/kube"
)

// withStores returns the config of a daemon with these flags that can open its stores. This file
// is the only one that knows which kinds of store there are.
func withStores(o *flags.Flags) node.Config {
	c := o.Config()
	c.Version = version
	c.StoreLog = logs.NewBound(c.Log)
	s := &stores{flags: o, log: c.StoreLog.Of(c.Log)}
	c.OpenStore = s.open
	c.StoreHosts = storeHosts(o)
	c.Certificates = func() []status.Certificate { return certificates(o) }
	if o.Network.Several() {
		c.OpenNetworks = s.openNetworks
	}
	if o.Etcd.Embedded {
		c.StartEtcd = func(ctx context.Context) node.Server { return startEtcd(ctx, o, c.Log) }
	}
	c.Fix = func(network string, err error) string { return fixOf(o, network, err) }
	return c
}

// stores opens the stores of a daemon.
type stores struct {
	flags *flags.Flags
	log   *slog.Logger
	etcd  *etcd.Client // shared by several networks; nil if each store has its own
}

// open opens the store of a network. Neither kind asks a server, so what they refuse is a flag or a file.
func (s *stores) open(ctx context.Context, network string, log *slog.Logger) (control.Store, error) {
	if s.etcd != nil {
		return s.etcd.Store(network, log), nil
	}
	if s.flags.Kube.Enabled {
		k, err := kube.Open(ctx, kubeConfig(s.flags, log))
		if err != nil {
			return nil, usagef("kubernetes: %w", err)
		}
		return k, nil
	}
	e, err := openEtcd(ctx, &s.flags.Etcd, network, log)
	if err != nil {
		return nil, err // not e: a nil *etcd.Store makes an interface that is not nil
	}
	return e, nil
}

// storeHosts returns the hosts of the store's URLs.
func storeHosts(o *flags.Flags) (hosts []string) {
	if o.Kube.Enabled {
		if host := kubeConfig(o, nil).ServerHost(); host != "" {
			hosts = append(hosts, host)
		}
		return hosts
	}
	for _, text := range o.Etcd.Endpoints {
		if u, err := url.Parse(text); err == nil && u.Hostname() != "" {
			hosts = append(hosts, u.Hostname())
		}
	}
	return hosts
}

// openNetworks connects the stores of all networks to one etcd, and returns the list of the networks:
// as they come and go below the prefix, or as the flags name them.
func (s *stores) openNetworks(ctx context.Context) (node.NetworkLister, error) {
	c, err := etcd.OpenClient(ctx, etcdConfig(&s.flags.Etcd, "", s.log))
	if err != nil {
		return nil, usagef("etcd: %w", err)
	}
	s.etcd = c
	return networkList{c, s.flags.Network.Names, s.flags.Network.Watch}, nil
}

// networkList lists the networks of one etcd. Close ends the connection of their stores.
type networkList struct {
	*etcd.Client
	names []string
	watch bool
}

// Networks implements node.NetworkLister.
func (l networkList) Networks(ctx context.Context) <-chan []string {
	if l.watch {
		return l.Store("", nil).Networks(ctx)
	}
	names := make(chan []string, 1)
	names <- l.names
	context.AfterFunc(ctx, func() { close(names) })
	return names
}

// openEtcd opens one network's store with a connection of its own.
func openEtcd(ctx context.Context, o *flags.Etcd, network string, log *slog.Logger) (*etcd.Store, error) {
	s, err := etcd.Open(ctx, etcdConfig(o, network, log))
	if err != nil {
		return nil, usagef("etcd: %w", err)
	}
	return s, nil
}

// etcdConfig is what the flags say about etcd, for the network with this name.
func etcdConfig(o *flags.Etcd, network string, log *slog.Logger) etcd.Config {
	return etcd.Config{
		Endpoints:  o.Endpoints,
		Prefix:     o.PrefixOf(network),
		CertFile:   o.CertFile,
		KeyFile:    o.KeyFile,
		CAFile:     o.CAFile,
		ServerName: o.ServerName,
		Username:   o.Username,
		Password:   o.Password,
		LeaseTTL:   o.LeaseTTL,
		Quiet:      o.Quiet,
		Log:        log,
	}
}

// kubeConfig is what the flags and the variables of a DaemonSet say about Kubernetes.
func kubeConfig(o *flags.Flags, log *slog.Logger) kube.Config {
	return kube.Config{
		Kubeconfig:                o.Kube.Kubeconfig,
		APIURL:                    o.Kube.APIURL,
		NodeName:                  o.Kube.NodeName,
		PodName:                   o.Kube.PodName,
		PodNamespace:              o.Kube.PodNamespace,
		AnnotationPrefix:          o.Kube.AnnotationPrefix,
		NetConfigPath:             o.Network.ConfigPath,
		SetNodeNetworkUnavailable: o.Kube.SetAvailable,
		Log:                       log,
	}
}

// keepSmall bounds how much garbage there may be: whoever writes to the store decides how much a daemon has to remember, and
// lists of it leave as much again. It is collected four times as often as usual, unless GOGC says otherwise.
func keepSmall() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25)
	}
}
