package embedded

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// served returns every RPC of the services that an etcd server registers, and
// whether it is a stream.
func served() map[string]bool {
	s := grpc.NewServer()
	pb.RegisterKVServer(s, &pb.UnimplementedKVServer{})
	pb.RegisterWatchServer(s, &pb.UnimplementedWatchServer{})
	pb.RegisterLeaseServer(s, &pb.UnimplementedLeaseServer{})
	pb.RegisterClusterServer(s, &pb.UnimplementedClusterServer{})
	pb.RegisterMaintenanceServer(s, &pb.UnimplementedMaintenanceServer{})
	pb.RegisterAuthServer(s, &pb.UnimplementedAuthServer{})
	v3electionpb.RegisterElectionServer(s, &v3electionpb.UnimplementedElectionServer{})
	v3lockpb.RegisterLockServer(s, &v3lockpb.UnimplementedLockServer{})
	healthpb.RegisterHealthServer(s, health.NewServer())
	methods := map[string]bool{}
	for name, service := range s.GetServiceInfo() {
		for _, m := range service.Methods {
			methods["/"+name+"/"+m.Name] = m.IsClientStream || m.IsServerStream
		}
	}
	return methods
}

// wantAllowed is written by hand: a new RPC of a later etcd is refused until
// somebody adds it here and in isAllowed.
var wantAllowed = []string{
	"/etcdserverpb.KV/DeleteRange", "/etcdserverpb.KV/Put", "/etcdserverpb.KV/Range", "/etcdserverpb.KV/Txn",
	"/etcdserverpb.Lease/LeaseGrant", "/etcdserverpb.Lease/LeaseKeepAlive", "/etcdserverpb.Lease/LeaseRevoke", "/etcdserverpb.Lease/LeaseTimeToLive",
	"/etcdserverpb.Maintenance/Status",
	"/etcdserverpb.Watch/Watch",
	"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch",
}

// TestEveryMethodIsJudged calls the guard with each RPC that etcd serves, and
// with some that it does not.
func TestEveryMethodIsJudged(t *testing.T) {
	methods := served()
	if len(methods) < 40 {
		t.Fatalf("found %d methods only: %v", len(methods), slices.Sorted(maps.Keys(methods)))
	}
	for _, m := range wantAllowed {
		if _, ok := methods[m]; !ok {
			t.Errorf("%s is not a method of etcd", m)
		}
	}
	for _, m := range []string{"", "/", "KV/Put", "/etcdserverpb.KV/put", "/etcdserverpb.KV/Put/", "/etcdserverpb.KV/New", "/x.KV/Put"} {
		methods[m] = false
	}
	g := newGuard("/p")
	for m, isStream := range methods {
		called := false
		var err error
		if isStream {
			err = g.stream(nil, nil, &grpc.StreamServerInfo{FullMethod: m}, func(any, grpc.ServerStream) error { called = true; return nil })
		} else {
			_, err = g.unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: m}, func(context.Context, any) (any, error) { called = true; return nil, nil })
		}
		switch want := slices.Contains(wantAllowed, m); {
		case want && (!called || err != nil):
			t.Errorf("%s: refused: %v", m, err)
		case m == "/etcdserverpb.Auth/Authenticate": // a client with a user name goes on without
			if called || !errors.Is(err, rpctypes.ErrGRPCAuthNotEnabled) {
				t.Errorf("%s: reached its handler: %v, error %v", m, called, err)
			}
		case !want && (called || status.Code(err) != codes.PermissionDenied):
			t.Errorf("%s: reached its handler: %v, error %v", m, called, err)
		}
	}
}

// TestUnaryRefusalKeepsTheHandlerOut: a request with a foreign key does not
// reach the server, and the handler's own answer is handed on.
func TestUnaryRefusalKeepsTheHandlerOut(t *testing.T) {
	g := newGuard("/p")
	info := &grpc.UnaryServerInfo{FullMethod: "/etcdserverpb.KV/Put"}
	boom := errors.New("boom")
	handle := func(_ context.Context, req any) (any, error) { return req, boom }
	in, out := &pb.PutRequest{Key: []byte("/p/a")}, &pb.PutRequest{Key: []byte("/q/a")}
	if resp, err := g.unary(t.Context(), in, info, handle); resp != any(in) || !errors.Is(err, boom) {
		t.Errorf("inside: got %v, %v, want the handler's answer", resp, err)
	}
	if resp, err := g.unary(t.Context(), out, info, handle); resp != nil || status.Code(err) != codes.PermissionDenied {
		t.Errorf("outside: got %v, %v, want it refused", resp, err)
	}
}

// fakeStream hands out one message, or an error.
type fakeStream struct {
	grpc.ServerStream
	message *pb.WatchRequest
	err     error
}

// Context implements grpc.ServerStream: of no connection.
func (fakeStream) Context() context.Context { return context.Background() }

func (s fakeStream) RecvMsg(m any) error {
	if s.err != nil {
		return s.err
	}
	m.(*pb.WatchRequest).RequestUnion = s.message.RequestUnion
	return nil
}

func TestStreamMessagesAreJudged(t *testing.T) {
	lost := errors.New("connection lost")
	create := func(key, end string) *pb.WatchRequest {
		return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte(key), RangeEnd: []byte(end)}}}
	}
	for _, c := range []struct {
		name   string
		stream fakeStream
		want   codes.Code
		err    error
	}{
		{name: "create inside", stream: fakeStream{message: create("/p/", "/p0")}},
		{name: "create one key inside", stream: fakeStream{message: create("/p/a", "")}},
		{name: "create outside", stream: fakeStream{message: create("/q/a", "")}, want: codes.PermissionDenied},
		{name: "create past the end", stream: fakeStream{message: create("/p/", "/p1")}, want: codes.PermissionDenied},
		{name: "create of everything", stream: fakeStream{message: create("\x00", "\x00")}, want: codes.PermissionDenied},
		{name: "cancel", stream: fakeStream{message: &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: 1}}}}},
		{name: "progress", stream: fakeStream{message: &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{}}}},
		{name: "empty message", stream: fakeStream{message: &pb.WatchRequest{}}},
		{name: "no message", stream: fakeStream{err: lost}, want: codes.Unknown, err: lost},
	} {
		var got error
		err := newGuard("/p").stream(nil, c.stream, &grpc.StreamServerInfo{FullMethod: "/etcdserverpb.Watch/Watch"}, func(_ any, s grpc.ServerStream) error {
			got = s.RecvMsg(new(pb.WatchRequest))
			return got
		})
		if status.Code(got) != c.want || status.Code(err) != c.want || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: received %v, stream ended with %v, want code %v", c.name, got, err, c.want)
		}
	}
}
