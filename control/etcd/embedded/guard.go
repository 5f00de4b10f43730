package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/lease"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// maxPut bounds a value that a client writes, in bytes. A lease or a network config has a few hundred.
const maxPut = 64 << 10

// maxKey bounds a key in what etcd writes to its log, in bytes. One of overlayd has fewer than 512. etcd has all keys in memory, those of
// deleted entries too.
const maxKey = 1024

// guard lets clients do what a Store needs and nothing else. They are not authenticated, and a
// single RPC to change the cluster's members or to enable authentication would end the cluster
// for good.
type guard struct {
	first, end []byte                // clients may use the keys from first up to but without end
	space      atomic.Pointer[space] // of the server behind it; nil: that is not ready
	answers    *answers
	bulk       bulk
}

// newGuard returns the guard that confines clients to the keys below prefix.
func newGuard(prefix string) *guard {
	below := strings.TrimRight(prefix, "/") + "/"
	return &guard{first: []byte(below), end: []byte(clientv3.GetPrefixRangeEnd(below)), answers: newAnswers(takePatience, newConnTracker().find), bulk: bulk{coming: map[int64]int{}}}
}

// options returns the gRPC options that put the guard in front of every service.
func (g *guard) options() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(g.unary), grpc.ChainStreamInterceptor(g.stream), grpc.StatsHandler(g.answers), grpc.InTapHandle(g.answers.sources.admit)}
}

// isAllowed reports whether clients may call a method at all.
func isAllowed(method string) bool {
	switch method {
	case "/etcdserverpb.KV/Range", "/etcdserverpb.KV/Put", "/etcdserverpb.KV/DeleteRange", "/etcdserverpb.KV/Txn",
		"/etcdserverpb.Watch/Watch",
		"/etcdserverpb.Lease/LeaseGrant", "/etcdserverpb.Lease/LeaseRevoke", "/etcdserverpb.Lease/LeaseKeepAlive", "/etcdserverpb.Lease/LeaseTimeToLive",
		"/etcdserverpb.Maintenance/Status",
		"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch":
		return true
	}
	return false
}

func (g *guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if err := checkMethod(info.FullMethod); err != nil {
		return nil, err
	}
	if err := g.check(req); err != nil {
		return nil, err
	}
	if err := g.checkServer(ctx, req); err != nil {
		return nil, err
	}
	if namesKeys(req) {
		handle = g.bounded(handle)
	}
	space := g.space.Load()
	if space == nil || !writes(req) {
		return g.answers.unary(ctx, req, handle)
	}
	done, err := g.bulk.check(ctx, space.server, req)
	if err != nil {
		return nil, err
	}
	defer done()
	answer, err := g.answers.unary(ctx, req, handle)
	if err == nil {
		space.history.wrote(answer)
	}
	return answer, err
}

// writes reports whether a request may change keys.
func writes(req any) bool {
	switch req.(type) {
	case *pb.PutRequest, *pb.TxnRequest, *pb.DeleteRangeRequest, *pb.LeaseRevokeRequest:
		return true
	}
	return false
}

func (g *guard) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if err := checkMethod(info.FullMethod); err != nil {
		return err
	}
	limited := g.answers.limit(s)
	defer limited.end()
	return handle(srv, guardedStream{limited, g})
}

// guardedStream checks each message that a client sends.
type guardedStream struct {
	*limitedStream
	guard *guard
}

// RecvMsg implements grpc.ServerStream.
func (s guardedStream) RecvMsg(m any) error {
	if err := s.limitedStream.RecvMsg(m); err != nil {
		return err
	}
	if err := s.guard.check(m); err != nil {
		return err
	}
	r, isWatch := m.(*pb.WatchRequest)
	space := s.guard.space.Load()
	if !isWatch || r.GetCreateRequest() == nil || space == nil {
		return nil
	}
	if bytes := space.history.since(r.GetCreateRequest().StartRevision); bytes > fewUnsent { // few watches: most begin just after a list
		return s.catchUp(bytes)
	}
	return nil
}

// SendMsg implements grpc.ServerStream.
func (s guardedStream) SendMsg(m any) error {
	s.sends(m)
	defer s.sends(nil)
	err := s.limitedStream.SendMsg(m)
	r, isWatch := m.(*pb.WatchResponse)
	if space := s.guard.space.Load(); err == nil && isWatch && space != nil {
		err = s.keepUp(space.history.since(r.GetHeader().GetRevision() + 1))
	}
	return err
}

// checkMethod refuses what is not allowed. A client with a user name has to hear that there is nothing to
// authenticate for; etcd itself is not asked.
func checkMethod(method string) error {
	switch {
	case isAllowed(method):
		return nil
	case method == "/etcdserverpb.Auth/Authenticate":
		return rpctypes.ErrGRPCAuthNotEnabled
	}
	return refusal("%s is not available to clients of an embedded etcd", strings.TrimPrefix(method, "/etcdserverpb."))
}

func refusal(format string, args ...any) error {
	return status.Error(codes.PermissionDenied, "refused: "+fmt.Sprintf(format, args...))
}

// check judges the keys of one request.
func (g *guard) check(req any) error {
	switch r := req.(type) {
	case *pb.RangeRequest:
		return g.checkKeys(r.Key, r.RangeEnd)
	case *pb.PutRequest:
		return g.checkPut(r)
	case *pb.DeleteRangeRequest:
		return g.checkWritten(r.Key, r.RangeEnd)
	case *pb.TxnRequest:
		return g.checkTxn(r)
	case *healthpb.HealthCheckRequest:
		if r.Service != "" {
			return refusal("a health check names service %.80q, which would be kept for good: name none", r.Service)
		}
	case *pb.WatchRequest:
		if create := r.GetCreateRequest(); create != nil {
			if create.PrevKv { // each watch would have all of them read for itself, however much that is
				return refusal("a watch cannot have the values before: read them by their revision")
			}
			return g.checkWritten(create.Key, create.RangeEnd) // it stays in memory, too
		}
	}
	return nil
}

// checkServer judges what depends on what the server has.
func (g *guard) checkServer(ctx context.Context, req any) error {
	fits := true
	switch r := req.(type) {
	case *pb.LeaseRevokeRequest:
		return g.checkRevoke(ctx, r.ID)
	case *pb.LeaseGrantRequest:
		fits = g.space.Load().grant()
	case *pb.PutRequest:
		fits = g.space.Load().put(1)
	case *pb.TxnRequest:
		fits = g.space.Load().put(puts(r))
	}
	if !fits {
		return rpctypes.ErrGRPCNoSpace
	}
	return nil
}

// puts returns how many keys a transaction may write.
func puts(r *pb.TxnRequest) (n int) {
	for _, op := range slices.Concat(r.Success, r.Failure) {
		if op.GetRequestPut() != nil {
			n++
		} else if t := op.GetRequestTxn(); t != nil {
			n += puts(t)
		}
	}
	return n
}

// namesKeys reports whether a request asks for the keys of a lease.
func namesKeys(req any) bool {
	r, ok := req.(*pb.LeaseTimeToLiveRequest)
	return ok && r.Keys
}

// bounded lets one client at a time ask for the keys of a lease. It refuses keys that a client may not see, and more than maxPut bytes of them: a client can put any number
// of keys on a lease.
func (g *guard) bounded(read grpc.UnaryHandler) grpc.UnaryHandler {
	return func(ctx context.Context, req any) (any, error) {
		if err := g.answers.reading.Acquire(ctx, maxAnswer); err != nil {
			return nil, status.FromContextError(err).Err()
		}
		defer g.answers.reading.Release(maxAnswer)
		got, err := read(ctx, req)
		l, ok := got.(*pb.LeaseTimeToLiveResponse)
		if err != nil || !ok {
			return nil, err
		}
		if err := g.checkAttached(l); err != nil {
			return nil, err
		}
		size := 0
		for _, key := range l.Keys {
			size += len(key)
		}
		if size > maxPut {
			return nil, refusal("lease %x has %d keys of %d bytes: a client is told at most %d bytes", l.ID, len(l.Keys), size, maxPut)
		}
		return got, nil
	}
}

// checkRevoke judges the end of a lease, which deletes all its keys.
func (g *guard) checkRevoke(ctx context.Context, id int64) error {
	space := g.space.Load()
	if space == nil {
		return status.Error(codes.Unavailable, "the embedded etcd is starting")
	}
	leave, err := g.answers.enter(ctx, addressOf(ctx), atOnce)
	if err != nil {
		return err
	}
	defer leave()
	if err := g.answers.reading.Acquire(ctx, maxAnswer); err != nil {
		return status.FromContextError(err).Err()
	}
	defer g.answers.reading.Release(maxAnswer)
	l, err := space.server.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: id, Keys: true})
	switch {
	case errors.Is(err, lease.ErrLeaseNotFound):
		return nil // as etcd will say
	case err != nil:
		return status.Error(codes.Unavailable, "look at the keys of the lease: "+err.Error())
	}
	return g.checkAttached(l)
}

// checkAttached judges the keys of a lease.
func (g *guard) checkAttached(l *pb.LeaseTimeToLiveResponse) error {
	for _, key := range l.Keys {
		if g.checkKeys(key, nil) != nil {
			return refusal("lease %x has keys that are not below %s", l.ID, g.first)
		}
	}
	return nil
}

func (g *guard) checkPut(r *pb.PutRequest) error {
	if len(r.Value) > maxPut {
		return refusal("the value of key %.80q has %d bytes: want at most %d", r.Key, len(r.Value), maxPut)
	}
	return g.checkWritten(r.Key, nil)
}

// checkTxn judges the comparisons and operations of a transaction, which may hold others.
func (g *guard) checkTxn(r *pb.TxnRequest) error {
	if partsLeft(r, maxParts) < 0 {
		return refusal("a transaction has more than %d comparisons and operations, those of nested ones included", maxParts)
	}
	for _, c := range r.Compare {
		if len(c.RangeEnd) > 0 { // etcd would read all values in it while everything else waits, at each start again
			return refusal("a range of keys is compared, from %.80q: compare single keys", c.Key)
		}
		if len(c.GetValue()) > maxPut {
			return refusal("a value of %d bytes is compared with key %.80q: want at most %d", len(c.GetValue()), c.Key, maxPut)
		}
		if err := g.checkWritten(c.Key, c.RangeEnd); err != nil {
			return err
		}
	}
	for _, ops := range [...][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range ops {
			if err := g.checkOp(op); err != nil {
				return err
			}
		}
	}
	return nil
}

// maxParts bounds the comparisons and operations of a transaction and of all transactions in it. etcd bounds each of these alone, and
// nothing else is written while it carries them out.
const maxParts = 192

// partsLeft returns how many more a transaction may have of so many; less than 0: it has too many.
func partsLeft(r *pb.TxnRequest, left int) int {
	left -= len(r.Compare) + len(r.Success) + len(r.Failure)
	for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range ops {
			if t := op.GetRequestTxn(); t != nil && left >= 0 {
				left = partsLeft(t, left)
			}
		}
	}
	return left
}

func (g *guard) checkOp(op *pb.RequestOp) error {
	switch r := op.Request.(type) {
	case *pb.RequestOp_RequestRange:
		return g.checkWritten(r.RequestRange.GetKey(), r.RequestRange.GetRangeEnd())
	case *pb.RequestOp_RequestPut:
		return g.check(r.RequestPut)
	case *pb.RequestOp_RequestDeleteRange:
		return g.check(r.RequestDeleteRange)
	case *pb.RequestOp_RequestTxn:
		return g.check(r.RequestTxn)
	}
	return nil
}

// checkWritten is checkKeys for what etcd keeps. Reads may name any key, because a list goes on behind one that an earlier version took.
func (g *guard) checkWritten(key, end []byte) error {
	if n := max(len(key), len(end)); n > maxKey {
		return refusal("key %.80q or the end of its range has %d bytes: want at most %d", key, n, maxKey)
	}
	return g.checkKeys(key, end)
}

// checkKeys judges one key, or the range from key up to but without end. An end of a zero byte
// alone means all keys from key on.
func (g *guard) checkKeys(key, end []byte) error {
	inside := bytes.Compare(key, g.first) >= 0 && bytes.Compare(key, g.end) < 0
	if len(end) > 0 {
		inside = inside && !bytes.Equal(end, []byte{0}) && bytes.Compare(end, g.end) <= 0
	}
	if !inside {
		return refusal("key %.80q is not below %s: an embedded etcd serves what is below the --etcd-prefix of its own daemon alone; choose a prefix below that, or an etcd of its own", key, g.first)
	}
	return nil
}
