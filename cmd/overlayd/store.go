package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"time"

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
	if s, ok := n.store.(*etcd.Store); ok {
		s.Close()
	}
	n.store = nil
}

// publicIPs returns the public addresses that the store gives this node: those of the
// Node's annotations, which win over the flags.
func (n *network) publicIPs(ctx context.Context) (v4, v6 netip.Addr, err error) {
	if s, ok := n.store.(*kube.Store); ok {
		return s.PublicIPs(ctx)
	}
	return netip.Addr{}, netip.Addr{}, nil
}

// markReady tells the store that the node's network is up, where somebody waits for that there.
func (n *network) markReady(ctx context.Context) error {
	if s, ok := n.store.(*kube.Store); ok {
		if err := s.MarkReady(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// configPoll is the period at which a config that gives no notice is read: a file.
const configPoll = time.Second

// configs sends the network config whenever it is another one, until ctx ends; then it closes the
// channel. One that is missing or not valid is logged and not sent.
func (n *network) configs(ctx context.Context) <-chan control.Network {
	if s, ok := n.store.(*etcd.Store); ok {
		return s.WatchNetwork(ctx)
	}
	out := make(chan control.Network)
	go func() { // ends with ctx; who reads to the end of out has waited for it
		defer close(out)
		var last control.Network
		var said string
		for tick := time.NewTicker(configPoll); ; {
			c, err := n.store.Network(ctx)
			switch {
			case ctx.Err() != nil:
			case err != nil && err.Error() != said:
				said = err.Error()
				n.log.Warn("network config not usable, going on with the last one", "err", err)
			case err == nil && c != last:
				said = ""
				select {
				case out <- c:
					last = c
				case <-ctx.Done():
				}
			}
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	}()
	return out
}

// releaseOf gives back every lease that node publishes and returns their keys.
func releaseOf(ctx context.Context, store control.Store, node control.Node) (given []string, err error) {
	leases, err := leasesOf(ctx, store, node)
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

// leasesOf returns the leases that node publishes: in Kubernetes that of its Node, under
// whatever address, elsewhere those under its own.
func leasesOf(ctx context.Context, store control.Store, node control.Node) ([]control.Lease, error) {
	if s, ok := store.(*kube.Store); ok {
		l, ok, err := s.Published(ctx)
		if err != nil || !ok {
			return nil, err
		}
		return []control.Lease{l}, nil
	}
	watch, cancel := context.WithCancel(ctx)
	first, ok := <-store.Watch(watch)
	cancel()
	if !ok {
		return nil, errors.New("the store does not answer: check the flags that say where it is")
	}
	own := control.Lease{PublicIP: node.PublicIP, PublicIPv6: node.PublicIPv6}
	return slices.DeleteFunc(first.Leases, func(l control.Lease) bool { return !l.SamePublicIP(own) }), nil
}
