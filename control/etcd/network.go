package etcd

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdnets"
	"github.com/overlayd/overlayd/control/etcdrpc"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// Networks sends the sorted names of all networks of the older layout, P/<name>/config with P the Store's prefix, first
// and after every change: see etcdnets.Watch. Client.Store opens the store of such a network.
func (s *Store) Networks(ctx context.Context) <-chan []string {
	return etcdnets.Watch(ctx, s.rpc, s.keys.Prefix, s.log)
}

// WatchNetwork implements control.ConfigWatcher. A slow receiver gets only the latest config.
func (s *Store) WatchNetwork(ctx context.Context) <-chan control.StoredNetwork {
	networks := make(chan control.StoredNetwork)
	var last control.StoredNetwork
	var lines pace.Lines // a config that changes to and fro is a few lines
	go func() {          // ends with ctx, which the close of the channel tells the receiver
		defer close(networks)
		s.followKey(ctx, "network config", s.keys.Config(), func(ctx context.Context) (*pb.ResponseHeader, error) {
			got, err := s.rpc.Get(ctx, "read network config", s.keys.Config())
			if err != nil {
				return nil, err
			}
			n, err := s.parseNetwork(got)
			now := control.StoredNetwork{Network: n, Err: err}
			if now.Same(last) {
				return got.Header, nil
			}
			if err != nil {
				s.logUnusable(ctx, &lines, err)
			}
			select {
			case networks <- now:
				last = now
			case <-ctx.Done():
			}
			return got.Header, nil
		})
	}()
	return networks
}

// logUnusable says that there is no network config that can be used.
func (s *Store) logUnusable(ctx context.Context, lines *pace.Lines, err error) {
	if now := time.Now(); lines.Due(now) {
		s.log.WarnContext(ctx, "network config is not usable: keeping the last one", "err", err)
	} else if more := lines.More(now); more > 0 {
		s.log.WarnContext(ctx, "network config is not usable: and more", "count", more)
	}
}

// followKey calls read, which returns the header of the answer, and again after every
// change of the key.
func (s *Store) followKey(ctx context.Context, what, key string, read func(context.Context) (*pb.ResponseHeader, error)) {
	s.rpc.Sessions(ctx, what, func(ctx context.Context, listed func()) error {
		at, err := read(ctx)
		if err != nil {
			return err
		}
		listed()
		return s.rpc.Stream(ctx, []etcdrpc.KeyRange{{From: key}}, at, 0, func([]*mvccpb.Event) error { return etcdrpc.ErrRelist })
	})
}
