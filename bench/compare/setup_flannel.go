package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/control/etcd/embedded"
)

// etcdCommand as first argument makes this program an etcd server with a network
// config for flanneld: compare etcd <directory> <client URL>; with the leases of that many peers: … <peers>.
const etcdCommand = "etcd"

func setupFlannel(ctx context.Context, p *pair) error {
	url := fmt.Sprintf("http://%s:2379", p.a.underlay)
	if err := p.a.start(ctx, nil, "/proc/self/exe", etcdCommand, p.a.path("etcd"), url); err != nil {
		return err
	}
	if err := p.a.awaitFile(ctx, p.a.path("etcd/ready")); err != nil {
		return err
	}
	for _, h := range p.hosts() {
		err := h.start(ctx, nil, "flanneld", "-etcd-endpoints", url, "-iface", underlayLink, "-subnet-file", h.path("subnet.env"))
		if err != nil {
			return err
		}
		if err := h.awaitSubnet(ctx); err != nil {
			return err
		}
	}
	return nil
}

// runEtcd serves until it is told to stop; <directory>/ready says that the config is there.
func runEtcd(dir, url string, peers int) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	server, err := embedded.Start(ctx, embedded.Config{Dir: dir, ListenClient: url, Log: log, NoFsync: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	client, err := clientv3.New(clientv3.Config{Endpoints: server.URLs(), DialTimeout: 5 * time.Second})
	if err != nil {
		return err
	}
	defer client.Close()
	network := overlayNetwork
	if peers > 0 {
		network = memoryNetwork
	}
	config := fmt.Sprintf(`{"Network": %q, "Backend": {"Type": "vxlan"}}`, network)
	if _, err := client.Put(ctx, "/coreos.com/network/config", config); err != nil {
		return fmt.Errorf("write network config: %w", err)
	}
	if err := putLeases(ctx, client, peers); err != nil {
		return err
	}
	if err := os.WriteFile(dir+"/ready", nil, 0o644); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-server.Err():
		return err
	}
}
