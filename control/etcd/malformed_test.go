package etcd_test

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// front is a server in front of etcd that spoils answers.
type front struct {
	pb.UnimplementedKVServer
	pb.UnimplementedWatchServer
	pb.UnimplementedLeaseServer
	pb.UnimplementedMaintenanceServer
	conn  *grpc.ClientConn
	kv    pb.KVClient
	spoil atomic.Pointer[func(answer any)] // nil: it is honest
}

// newFront starts a front of a cluster, through which the Stores that the cluster opens from now on go.
func newFront(t *testing.T, c *cluster) *front {
	t.Helper()
	conn, err := grpc.NewClient(c.url(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	f, s := &front{conn: conn, kv: pb.NewKVClient(conn)}, grpc.NewServer()
	pb.RegisterKVServer(s, f)
	pb.RegisterWatchServer(s, f)
	pb.RegisterLeaseServer(s, f)
	pb.RegisterMaintenanceServer(s, f)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		<-done
		conn.Close()
	})
	c.cfg.Endpoints = []string{"http://" + l.Addr().String()}
	return f
}

// answer spoils what etcd has answered.
func answer[T any](f *front, a T, err error) (T, error) {
	if spoil := f.spoil.Load(); spoil != nil && err == nil {
		(*spoil)(a)
	}
	return a, err
}

// Range implements pb.KVServer, as do the methods below the other services.
func (f *front) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	a, err := f.kv.Range(ctx, r)
	return answer(f, a, err)
}

func (f *front) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	a, err := f.kv.Txn(ctx, r)
	return answer(f, a, err)
}

func (f *front) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	return pb.NewLeaseClient(f.conn).LeaseGrant(ctx, r)
}

func (f *front) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	return pb.NewLeaseClient(f.conn).LeaseRevoke(ctx, r)
}

func (f *front) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	return pb.NewLeaseClient(f.conn).LeaseTimeToLive(ctx, r)
}

func (f *front) Status(ctx context.Context, r *pb.StatusRequest) (*pb.StatusResponse, error) {
	return pb.NewMaintenanceClient(f.conn).Status(ctx, r)
}

func (f *front) LeaseKeepAlive(s pb.Lease_LeaseKeepAliveServer) error {
	up, err := pb.NewLeaseClient(f.conn).LeaseKeepAlive(s.Context())
	if err != nil {
		return err
	}
	return forward(f, s, up)
}

func (f *front) Watch(s pb.Watch_WatchServer) error {
	up, err := pb.NewWatchClient(f.conn).Watch(s.Context())
	if err != nil {
		return err
	}
	return forward(f, s, up)
}

// forward hands on a stream both ways until an end of it is gone.
func forward[Req, Res any](f *front, s grpc.BidiStreamingServer[Req, Res], up grpc.BidiStreamingClient[Req, Res]) error {
	go func() { // ends with the stream
		for {
			r, err := s.Recv()
			if err != nil || up.Send(r) != nil {
				return
			}
		}
	}()
	for {
		a, err := up.Recv()
		if a, err = answer(f, a, err); err != nil {
			return err
		}
		if err := s.Send(a); err != nil {
			return err
		}
	}
}

// of returns what spoils answers of one type.
func of[T any](spoil func(a T)) func(any) {
	return func(a any) {
		if a, ok := a.(T); ok {
			spoil(a)
		}
	}
}

// TestMalformedAnswers: an answer that lacks what every etcd says is an error that says so, which costs neither the daemon nor
// its lease. When etcd is right again, all goes on.
func TestMalformedAnswers(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	f := newFront(t, c)
	s := c.open(t)
	l := acquire(t, s, 1)
	junk := &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{}}}
	network := func() error { _, err := s.Network(t.Context()); return err }
	renewal := func() error { _, err := s.Renew(t.Context(), l); return err }
	record := func() error { // of another node, which finds one where it looks for none
		n, vteps := node(1)
		other := c.open(t)
		defer other.Close()
		_, err := other.Acquire(t.Context(), n, vteps)
		return err
	}
	for name, tt := range map[string]struct {
		spoil func(any)
		call  func() error
		want  string
	}{
		"get without header":     {of(func(r *pb.RangeResponse) { r.Header = nil }), network, "no header"},
		"get with a foreign key": {of(func(r *pb.RangeResponse) { r.Kvs = append(r.Kvs, &mvccpb.KeyValue{}) }), network, `key "", which was not asked for`},
		"txn without header":     {of(func(r *pb.TxnResponse) { r.Header = nil }), renewal, "no header"},
		"txn without responses":  {of(func(r *pb.TxnResponse) { r.Responses = nil }), renewal, "0 responses to 2 operations"},
		"txn with few responses": {of(func(r *pb.TxnResponse) { r.Responses = r.Responses[:len(r.Responses)/2] }), renewal, "1 responses to 2"},
		"txn that fails":         {of(func(r *pb.TxnResponse) { r.Succeeded, r.Responses = false, nil }), renewal, "a comparison failed"},
		"txn of another kind": {of(func(r *pb.TxnResponse) {
			for i := range r.Responses {
				r.Responses[i] = junk
			}
		}), renewal, "no response to a range"},
		"txn with an empty response": {of(func(r *pb.TxnResponse) {
			for i := range r.Responses {
				r.Responses[i] = &pb.ResponseOp{}
			}
		}), renewal, "no response to a range"},
		"record that is there and is not": {of(func(r *pb.TxnResponse) {
			for _, op := range r.Responses {
				if got := op.GetResponseRange(); got != nil {
					got.Kvs = nil
				}
			}
		}), record, "lacks the record"},
	} {
		f.spoil.Store(&tt.spoil)
		err := tt.call()
		f.spoil.Store(nil)
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Count(err.Error(), "malformed answer") != 1 {
			t.Errorf("%s: %v, want that the answer is malformed: %s", name, err, tt.want)
		}
		if now, err := s.Renew(t.Context(), l); err != nil || now.Key() != l.Key() {
			t.Fatalf("%s: renewed %s, %v when etcd is right again", name, now.Key(), err)
		}
	}
}

// TestMalformedEvents: a stream with an event that cannot be is begun again, after a list.
func TestMalformedEvents(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spoil func(r *pb.WatchResponse)
		want  string
	}{
		"without header":      {func(r *pb.WatchResponse) { r.Header = nil }, "no header"},
		"event without a key": {func(r *pb.WatchResponse) { r.Events = append(r.Events, &mvccpb.Event{}) }, "event without a key"},
		"foreign event": {func(r *pb.WatchResponse) {
			r.Events = append(r.Events, &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte("/other")}})
		}, "which is not watched"},
	} {
		c := newCluster(t)
		f := newFront(t, c)
		var log syncBuffer
		c.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		updates := watch(t, c.open(t))
		tb := table{}
		c.PutRaw(t, key(1), value(1))
		follow(t, c, updates, tb)
		spoil := of(tt.spoil)
		f.spoil.Store(&spoil)
		c.PutRaw(t, key(2), value(2))
		eventually(t, name+": the log says it", func() bool { return strings.Contains(log.String(), tt.want) })
		f.spoil.Store(nil)
		c.PutRaw(t, key(3), value(3))
		follow(t, c, updates, tb)
	}
}
