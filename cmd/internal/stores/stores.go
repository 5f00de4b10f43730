// Package stores opens the stores that the flags of a daemon name: etcd or Kubernetes. Only three packages below
// cmd/overlayd know which kinds of store there are: this one, etcdchild, which runs an etcd, and leases, whose commands
// are for etcd only.
//
// It asks no server. So each of its errors is about a flag or a file.
package stores

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"

	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/node"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
	"github.com/overlayd/overlayd/control/kube"
)

// Stores opens the stores of a daemon.
type Stores struct {
	flags *flags.Flags
	log   *slog.Logger
	etcd  *etcd.Client // shared by several networks; nil if each store has its own
}

// New returns the stores of a daemon with these flags.
func New(o *flags.Flags, log *slog.Logger) *Stores { return &Stores{flags: o, log: log} }

// Open opens the store of a network.
func (s *Stores) Open(ctx context.Context, network string, log *slog.Logger) (control.Store, error) {
	if s.etcd != nil {
		return s.etcd.Store(network, log), nil
	}
	if s.flags.Kube.Enabled {
		k, err := kube.Open(ctx, kubeConfig(s.flags, log))
		if err != nil {
			return nil, fmt.Errorf("kubernetes: %w", err)
		}
		return k, nil
	}
	e, err := OpenEtcd(ctx, &s.flags.Etcd, network, log)
	if err != nil {
		return nil, err // not e: a nil *etcd.Store makes an interface that is not nil
	}
	return e, nil
}

// Hosts returns the hosts of the store's URLs.
func (s *Stores) Hosts() (hosts []string) {
	if s.flags.Kube.Enabled {
		if host := kubeConfig(s.flags, nil).ServerHost(); host != "" {
			hosts = append(hosts, host)
		}
		return hosts
	}
	for _, text := range s.flags.Etcd.Endpoints {
		if u, err := url.Parse(text); err == nil && u.Hostname() != "" {
			hosts = append(hosts, u.Hostname())
		}
	}
	return hosts
}

// Files returns the files that a store of Kubernetes reads again while it runs, besides the kubeconfig.
func (s *Stores) Files() []string {
	if !s.flags.Kube.Enabled {
		return nil
	}
	return kubeConfig(s.flags, nil).Files()
}

// OpenNetworks connects the stores of all networks to one etcd, and returns the list of the networks:
// as they come and go below the prefix, or as the flags name them.
func (s *Stores) OpenNetworks(ctx context.Context) (node.NetworkLister, error) {
	c, err := etcd.OpenClient(ctx, etcdConfig(&s.flags.Etcd, "", s.log))
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
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

// OpenEtcd opens one network's store with a connection of its own.
func OpenEtcd(ctx context.Context, o *flags.Etcd, network string, log *slog.Logger) (*etcd.Store, error) {
	s, err := etcd.Open(ctx, etcdConfig(o, network, log))
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return s, nil
}

// etcdConfig is what the flags say about etcd, for the network with this name.
func etcdConfig(o *flags.Etcd, network string, log *slog.Logger) etcd.Config {
	return etcd.Config{
		Endpoints:    o.Endpoints,
		Prefix:       o.PrefixOf(network),
		CertFile:     o.CertFile,
		KeyFile:      o.KeyFile,
		CAFile:       o.CAFile,
		ServerName:   o.ServerName,
		Username:     o.Username,
		Password:     o.Password,
		ReadPassword: o.PasswordReader(),
		LeaseTTL:     o.LeaseTTL,
		Quiet:        o.Quiet,
		Log:          log,
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
