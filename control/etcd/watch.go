package etcd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/overlayd/overlayd/control"
)

const (
	minWatchDelay = 50 * time.Millisecond // before the first retry
	maxWatchDelay = 500 * time.Millisecond
	outageLogged  = time.Minute // how often an outage that lasts is logged
)

// Watch implements control.Store. A receiver that is slow is waited for: etcd keeps
// what is missed, and what it no longer has comes as a Reset.
func (s *Store) Watch(ctx context.Context) <-chan control.Update {
	updates := make(chan control.Update)
	w := &watcher{Store: s, updates: updates}
	go func() { // ends with ctx, which the close of the channel tells the receiver
		defer close(updates)
		w.run(ctx)
	}()
	return updates
}

// watcher is one Watch.
type watcher struct {
	*Store
	updates chan<- control.Update
	last    *pb.ResponseHeader // of the last list
	outage  outage
}

// errRelist ends a session that has been trusted for long enough.
var errRelist = errors.New("time to list again")

// run lists and streams, again and again.
func (w *watcher) run(ctx context.Context) {
	delay := minWatchDelay
	for ctx.Err() == nil {
		listed, err := w.session(ctx)
		if listed {
			delay = minWatchDelay
		}
		if ctx.Err() != nil || errors.Is(err, errRelist) {
			continue
		}
		if w.outage.due(time.Now()) {
			w.log.WarnContext(ctx, "watch of the leases interrupted, forwarding on what is known", "err", err)
		}
		if pause(ctx, delay) != nil {
			return
		}
		delay = min(2*delay, maxWatchDelay)
	}
}

// session sends one list and then every change of it, until the stream ends.
func (w *watcher) session(ctx context.Context) (listed bool, err error) {
	u := control.Update{Reset: true}
	at, err := w.list(ctx, func(kvs []*mvccpb.KeyValue) {
		for _, kv := range kvs {
			w.keys.add(&u, kv)
		}
	})
	if err != nil {
		return false, err
	}
	w.compare(ctx, at)
	if lasted, ok := w.outage.over(time.Now()); ok {
		w.log.InfoContext(ctx, "leases are watched again", "after", lasted.Round(time.Millisecond))
	}
	if err := w.send(ctx, u); err != nil {
		return true, err
	}
	relist := w.cfg.Relist*9/10 + rand.N(w.cfg.Relist/5)
	sctx, cancel := context.WithTimeoutCause(ctx, relist, errRelist)
	defer cancel()
	err = w.stream(sctx, at.Revision+1)
	if errors.Is(context.Cause(sctx), errRelist) {
		err = errRelist
	}
	return true, err
}

// compare says when etcd is not the one that it was.
func (w *watcher) compare(ctx context.Context, at *pb.ResponseHeader) {
	if l := w.last; l != nil && (l.ClusterId != at.ClusterId || at.Revision < l.Revision) {
		w.log.WarnContext(ctx, "etcd was replaced or restored from a backup", "revision", at.Revision, "was", l.Revision,
			"cluster", fmt.Sprintf("%x", at.ClusterId), "cluster_was", fmt.Sprintf("%x", l.ClusterId))
	}
	w.last = at
}

// stream sends the changes from a revision on. It always ends with an error.
func (w *watcher) stream(ctx context.Context, from int64) error {
	c, err := w.connect(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx) // ends the stream
	defer cancel()
	stream, err := pb.NewWatchClient(c.ActiveConnection()).Watch(clientv3.WithRequireLeader(ctx),
		grpc.MaxCallRecvMsgSize(math.MaxInt32))
	if err != nil {
		return w.explain(ctx, "watch leases", rpctypes.Error(err))
	}
	prefix := w.keys.subnets()
	create := &pb.WatchCreateRequest{Key: []byte(prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(prefix)), StartRevision: from}
	if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil {
		return w.explain(ctx, "watch leases", rpctypes.Error(err))
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return w.explain(ctx, "watch leases", rpctypes.Error(err))
		}
		switch {
		case resp.CompactRevision != 0:
			return fmt.Errorf("watch leases from revision %d: etcd has compacted all before %d", from, resp.CompactRevision)
		case resp.Canceled:
			return fmt.Errorf("watch leases: etcd at %s ended the watch: %.120q", w.endpoints(), resp.CancelReason)
		case len(resp.Events) == 0:
			continue
		}
		if err := w.send(ctx, w.keys.update(resp.Events)); err != nil {
			return err
		}
	}
}

// send waits for the receiver.
func (w *watcher) send(ctx context.Context, u control.Update) error {
	w.bad.Add(uint64(len(u.Bad)))
	if u.Reset {
		w.resets.Add(1)
	} else {
		w.changes.Add(1)
	}
	select {
	case w.updates <- u:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// outage says when a state of failure is worth a line: at its start, and while it
// lasts once a minute.
type outage struct{ since, logged time.Time }

func (o *outage) due(now time.Time) bool {
	if o.since.IsZero() {
		o.since = now
	}
	if !o.logged.IsZero() && now.Sub(o.logged) < outageLogged {
		return false
	}
	o.logged = now
	return true
}

// over ends the outage. ok is false if there was none.
func (o *outage) over(now time.Time) (lasted time.Duration, ok bool) {
	lasted, ok = now.Sub(o.since), !o.since.IsZero()
	*o = outage{}
	return lasted, ok
}
