package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"runtime/debug"

	"k8s.io/klog/v2"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
	"github.com/overlayd/overlayd/control/kube"
)

// openStore opens the network's store unless it is open. Neither kind asks a server, so what
// they refuse is a flag or a file.
func (n *network) openStore(ctx context.Context) error {
	if n.store != nil {
		return nil
	}
	if n.kube {
		s, err := kube.Open(ctx, n.kubeConfig(n.log))
		if err != nil {
			return usagef("kubernetes: %w", err)
		}
		n.store = s
		return nil
	}
	s, err := etcd.Open(ctx, n.etcdConfig(n.name, n.log))
	if err != nil {
		return usagef("etcd: %w", err)
	}
	n.store = s
	return nil
}

// keepKubeSmall is for what client-go has one of in a process: its log, and the garbage of a
// list of thousands of Nodes, which is collected twice as often unless GOGC says else.
func keepKubeSmall(log *slog.Logger) {
	klog.SetSlogLogger(log)
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
}

func (n *network) closeStore() {
	if s, ok := n.store.(io.Closer); ok {
		s.Close()
	}
	n.store = nil
}

// publicIPs returns the public addresses that the store gives this node. They win over the flags.
func (n *network) publicIPs(ctx context.Context) (v4, v6 netip.Addr, err error) {
	if s, ok := n.store.(control.AddressSource); ok {
		return s.PublicIPs(ctx)
	}
	return netip.Addr{}, netip.Addr{}, nil
}

// markReady tells those who wait in the store that the node's network is up.
func (n *network) markReady(ctx context.Context) error {
	if s, ok := n.store.(control.ReadyMarker); ok {
		if err := s.MarkReady(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// configs sends the network config whenever it is another one, until ctx ends; then it closes the
// channel. It is nil if the store does not report changes.
func (n *network) configs(ctx context.Context) <-chan control.Network {
	if s, ok := n.store.(control.ConfigWatcher); ok {
		return s.WatchNetwork(ctx)
	}
	return nil
}

// releaseOf gives back every lease that node publishes and returns their keys.
func releaseOf(ctx context.Context, store control.Store, node control.Node) (given []string, err error) {
	publisher, ok := store.(control.Publisher)
	if !ok {
		return nil, nil
	}
	leases, err := publisher.Published(ctx, node)
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	for _, l := range leases {
		if err := store.Release(ctx, l); err != nil {
			return given, fmt.Errorf("give back %s: %w", l.Key(), err)
		}
		given = append(given, l.Key())
	}
	return given, nil
}
