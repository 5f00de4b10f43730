package embedded

import (
	"context"
	"fmt"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// TestNothingLasts: what a client says of itself is forgotten with the RPC, also with one that is refused, and a header has few bytes.
func TestNothingLasts(t *testing.T) {
	version := func(i int, bytes int) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "client-api-version", fmt.Sprint(i)+strings.Repeat("v", bytes))
	}
	for name, c := range map[string]struct {
		times int
		do    func(c *grpc.ClientConn, i int) error
		want  codes.Code
	}{
		"versions": {16000, func(c *grpc.ClientConn, i int) error {
			_, err := pb.NewMaintenanceClient(c).Status(version(i, 8<<10), &pb.StatusRequest{})
			return err
		}, codes.OK},
		"versions of what is refused": {16000, func(c *grpc.ClientConn, i int) error {
			_, err := pb.NewClusterClient(c).MemberList(version(i, 8<<10), &pb.MemberListRequest{})
			return err
		}, codes.PermissionDenied},
		"services": {1000, func(c *grpc.ClientConn, i int) error {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w, err := healthpb.NewHealthClient(c).Watch(ctx, &healthpb.HealthCheckRequest{Service: fmt.Sprint(i) + strings.Repeat("s", maxRequest-1000)})
			if err == nil {
				_, err = w.Recv()
			}
			return err
		}, codes.PermissionDenied},
		"health": {1, func(c *grpc.ClientConn, _ int) error {
			_, err := healthpb.NewHealthClient(c).Check(t.Context(), &healthpb.HealthCheckRequest{})
			return err
		}, codes.OK},
		"a long header": {1, func(c *grpc.ClientConn, i int) error {
			k, err := pb.NewLeaseClient(c).LeaseKeepAlive(version(i, maxHeader))
			if err == nil {
				_, err = k.Recv()
			}
			return err
		}, codes.Internal},
		"a refused RPC without its message": {1, func(c *grpc.ClientConn, _ int) error {
			s, err := c.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, pb.Cluster_MemberList_FullMethodName)
			if err == nil {
				err = s.RecvMsg(&pb.MemberListResponse{})
			}
			return err
		}, codes.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			s := startProcess(t)
			conn := dial(t, s.address, insecure.NewCredentials())
			before := 0
			for i := range c.times {
				if err := c.do(conn, i); status.Code(err) != c.want {
					t.Fatalf("%v, want %s", err, c.want)
				}
				if i == c.times/16 {
					before = s.peak() // with what the first ones cost
				}
			}
			after := s.peak()
			t.Logf("%d kB after a sixteenth, %d kB at last", before, after)
			if after-before > 48<<10 && !raceEnabled {
				t.Errorf("%d kB of memory, %d kB after a sixteenth", after, before)
			}
		})
	}
}

// TestTransactionsAreSmall: a transaction compares single keys, and has few comparisons and operations, however they are nested.
func TestTransactionsAreSmall(t *testing.T) {
	put := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("/p/x")}}}
	nested := func(r *pb.TxnRequest) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: r}}
	}
	compares := func(n int) (all []*pb.Compare) {
		for range n {
			all = append(all, &pb.Compare{Key: []byte("/p/x")})
		}
		return all
	}
	deep := &pb.TxnRequest{}
	for range maxParts {
		deep = &pb.TxnRequest{Failure: []*pb.RequestOp{nested(deep)}}
	}
	half := &pb.TxnRequest{Compare: compares(maxParts/2 - 1)}
	for name, c := range map[string]struct {
		r       *pb.TxnRequest
		refused bool
	}{
		"as many as there may be":  {&pb.TxnRequest{Compare: compares(maxParts - 1), Success: []*pb.RequestOp{put}}, false},
		"too many":                 {&pb.TxnRequest{Compare: compares(maxParts), Failure: []*pb.RequestOp{put}}, true},
		"nested, as many":          {&pb.TxnRequest{Success: []*pb.RequestOp{nested(half)}, Failure: []*pb.RequestOp{nested(half)}}, false},
		"nested, one more":         {&pb.TxnRequest{Success: []*pb.RequestOp{nested(half), put}, Failure: []*pb.RequestOp{nested(half)}}, true},
		"deep":                     {deep, false},
		"deeper":                   {&pb.TxnRequest{Success: []*pb.RequestOp{nested(deep)}}, true},
		"a range is compared":      {&pb.TxnRequest{Compare: []*pb.Compare{{Key: []byte("/p/"), RangeEnd: []byte("/p0")}}}, true},
		"a range, in a nested one": {&pb.TxnRequest{Success: []*pb.RequestOp{nested(&pb.TxnRequest{Compare: []*pb.Compare{{Key: []byte("/p/"), RangeEnd: []byte("/p/x")}}})}}, true},
	} {
		if err := newGuard("/p").check(c.r); (status.Code(err) == codes.PermissionDenied) != c.refused || !c.refused && err != nil {
			t.Errorf("%s: %v, want it refused: %v", name, err, c.refused)
		}
	}
}
