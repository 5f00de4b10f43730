package etcdrpc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/pace"
)

const (
	minWatchDelay  = 50 * time.Millisecond // before the first retry
	maxWatchDelay  = 500 * time.Millisecond
	maxStreamDelay = 2 * time.Second // of a list that can be read while its stream does not last
	streamLasts    = 10 * time.Second
	outageLogged   = 10 * time.Minute // how often an outage that lasts is logged
)

// ErrRelist ends a session that is to be followed by another at once.
var ErrRelist = errors.New("time to read again")

// Sessions runs session again and again until ctx ends, after a pause if it
// failed. session reads what there is, calls listed, and follows the changes; what names them.
// A list alone ends no outage: a proxy may let lists through, and no stream. The changes are followed
// when a session has lasted for streamLasts after its list, or has ended with ErrRelist.
func (c *Caller) Sessions(ctx context.Context, what string, session func(ctx context.Context, listed func()) error) {
	var outage outage
	unread := pace.Backoff{Low: minWatchDelay, High: maxWatchDelay}
	unfollowed := pace.Backoff{Low: minWatchDelay, High: maxStreamDelay}
	follows := func() {
		unfollowed.Reset()
		if lasted, ok := outage.over(); ok {
			c.log.InfoContext(ctx, "watch of the "+what+" resumed", "gap", lasted.Round(time.Millisecond))
		}
	}
	for ctx.Err() == nil {
		again, stop := &unread, func() {}
		err := session(ctx, func() {
			outage.listed(time.Now())
			unread.Reset()
			again, stop = &unfollowed, after(streamLasts, follows)
		})
		stop()
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrRelist):
			follows()
			continue
		case outage.due(time.Now(), control.Refusal(err)):
			c.log.WarnContext(ctx, "watch of the "+what+" interrupted: keeping what is known", "err", err)
		}
		if !pace.Sleep(ctx, again.Next(), nil) {
			return
		}
	}
}

// after calls f in a while. When stop has returned f does not run, nor will it.
func after(d time.Duration, f func()) (stop func()) {
	done := make(chan struct{})
	timer := time.AfterFunc(d, func() { defer close(done); f() })
	return func() {
		if !timer.Stop() {
			<-done
		}
	}
}

// Stream hands out the changes of some keys after a list, whose header is at. known is a revision that etcd has reached
// since, or 0: an etcd that has not is another one, or an older state of it. Stream always ends with an error: that of
// changed, ErrRelist when it has been trusted for long enough, or what is wrong.
func (c *Caller) Stream(ctx context.Context, keys []KeyRange, at *pb.ResponseHeader, known int64, changed func([]*mvccpb.Event) error) error {
	trusted := c.relist*9/10 + rand.N(c.relist/5)
	sctx, cancel := context.WithTimeoutCause(ctx, trusted, ErrRelist) // its end is that of the stream
	defer cancel()
	var refusal error // of changed: it says nothing about etcd
	err := c.receive(sctx, keys, at, known, func(events []*mvccpb.Event) error {
		refusal = changed(events)
		return refusal
	})
	if refusal == nil {
		c.noteAnswer(sctx, 0, err)
	}
	if errors.Is(context.Cause(sctx), ErrRelist) {
		return ErrRelist
	}
	return err
}

func (c *Caller) receive(ctx context.Context, keys []KeyRange, at *pb.ResponseHeader, known int64, changed func([]*mvccpb.Event) error) error {
	what, from := "watch "+keys[0].From, at.Revision+1
	known = max(known, at.Revision)
	cctx, cancel := context.WithTimeout(ctx, rpcTimeout)
	e, err := c.connect(cctx)
	if cancel(); err != nil {
		return c.explain(ctx, what, err)
	}
	stream, err := pb.NewWatchClient(e.ActiveConnection()).Watch(clientv3.WithRequireLeader(ctx),
		grpc.MaxCallRecvMsgSize(maxEvents))
	if err != nil {
		return c.explain(ctx, what, rpctypes.Error(err))
	}
	for _, k := range keys {
		create := &pb.WatchCreateRequest{Key: []byte(k.From), RangeEnd: []byte(k.End), StartRevision: from}
		if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil {
			return c.explain(ctx, what, rpctypes.Error(err))
		}
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return c.explain(ctx, what, rpctypes.Error(err))
		}
		if err := checkWatch(keys, resp); err != nil {
			return c.explain(ctx, what, err)
		}
		told := resp.Header.ClusterId != 0 // etcd grpc-proxy, which makes one watch of several, says nothing true of itself to the later ones
		if told {
			c.health.Heard(resp.Header.Revision) // etcd goes on with a watch of a user that it would refuse now
		}
		switch {
		case resp.CompactRevision != 0:
			return fmt.Errorf("%s from revision %d: etcd has compacted all before %d", what, from, resp.CompactRevision)
		case resp.Canceled:
			return fmt.Errorf("%s: etcd at %s ended the watch: %.120q", what, c.Endpoints(), resp.CancelReason)
		case resp.Created && told && resp.Header.ClusterId != at.ClusterId:
			return fmt.Errorf("%s from revision %d: etcd at %s is of cluster %x, and the list was of cluster %x", what, from, c.Endpoints(), resp.Header.ClusterId, at.ClusterId)
		case resp.Created && told && resp.Header.Revision < known: // it would be silent about what it has lost, and what came instead
			return fmt.Errorf("%s from revision %d: etcd at %s is at revision %d, and was at %d: it went back to an older state, or lags behind",
				what, from, c.Endpoints(), resp.Header.Revision, known)
		case len(resp.Events) == 0:
			continue
		}
		cutEvents(keys, resp.Events)
		if err := changed(resp.Events); err != nil {
			return err
		}
	}
}

// outage says when a state of failure is worth a line: at its start, when it is found that people have to end it, and
// while it lasts once in ten minutes.
type outage struct {
	since, logged time.Time
	why           error     // control.Refusal of what was logged last
	read          time.Time // the first list since the last failure; zero: there was none
}

func (o *outage) due(now time.Time, why error) bool {
	if o.read = (time.Time{}); o.since.IsZero() {
		o.since = now
	}
	found := why != nil && why != o.why
	if !o.logged.IsZero() && now.Sub(o.logged) < outageLogged && !found {
		return false
	}
	o.logged, o.why = now, why
	return true
}

// listed notes a list: if the outage is over, it ended then.
func (o *outage) listed(now time.Time) {
	if o.read.IsZero() {
		o.read = now
	}
}

// over ends the outage. ok is false if there was no outage.
func (o *outage) over() (lasted time.Duration, ok bool) {
	lasted, ok = o.read.Sub(o.since), !o.since.IsZero()
	*o = outage{}
	return lasted, ok
}
