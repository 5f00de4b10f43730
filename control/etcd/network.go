package etcd

import (
	"context"
	"time"

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

// WatchNetwork implements control.ConfigWatcher. A slow receiver does not get each config, but always the latest one in the end.
func (s *Store) WatchNetwork(ctx context.Context) <-chan control.StoredNetwork {
	w := &configWatch{Store: s, networks: make(chan control.StoredNetwork)}
	go func() { // ends with ctx, which the close of the channel tells the receiver
		defer close(w.networks)
		w.rpc.Sessions(ctx, "network config", w.session)
	}()
	return w.networks
}

// configWatch is one WatchNetwork.
type configWatch struct {
	*Store
	networks chan control.StoredNetwork
	last     control.StoredNetwork // what was sent last
	lines    pace.Lines            // a config that changes to and fro is a few lines
}

// slowReceiver is how long a change waits for the receiver. Then the config is read again.
const slowReceiver = time.Second

// session reads the config and then follows its changes. It does not read the config again for each change: somebody who
// writes it all the time would make all nodes read it as often.
func (w *configWatch) session(ctx context.Context, listed func()) error {
	got, err := w.rpc.Get(ctx, "read network config", w.keys.Config())
	if err != nil {
		return err
	}
	if err := w.take(ctx, got.Kvs, nil); err != nil {
		return err
	}
	listed()
	return w.rpc.Stream(ctx, []etcdrpc.KeyRange{{From: w.keys.Config()}}, got.Header, 0, func(events []*mvccpb.Event) error {
		var kvs []*mvccpb.KeyValue
		if e := events[len(events)-1]; e.Type != mvccpb.Event_DELETE {
			kvs = append(kvs, e.Kv)
		}
		return w.take(ctx, kvs, time.After(slowReceiver))
	})
}

// take sends the config in kvs if it differs from the one sent last. If the receiver has not taken it by late, the error is etcdrpc.ErrRelist.
func (w *configWatch) take(ctx context.Context, kvs []*mvccpb.KeyValue, late <-chan time.Time) error {
	n, err := w.parseNetwork(kvs)
	now := control.StoredNetwork{Network: n, Err: err}
	if now.Same(w.last) {
		return nil
	}
	if err != nil {
		w.logUnusable(ctx, err)
	}
	select {
	case w.networks <- now:
		w.last = now
		return nil
	case <-late:
		return etcdrpc.ErrRelist
	case <-ctx.Done():
		return ctx.Err()
	}
}

// logUnusable says that there is no network config that can be used.
func (w *configWatch) logUnusable(ctx context.Context, err error) {
	if now := time.Now(); w.lines.Due(now) {
		w.log.WarnContext(ctx, "network config is not usable: keeping the last one", "err", err)
	} else if more := w.lines.More(now); more > 0 {
		w.log.WarnContext(ctx, "network config is not usable: and more", "count", more)
	}
}
