package etcd

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/overlayd/overlayd/control"
)

// call runs one RPC with a timeout and makes its error say what was tried where.
func (s *Store) call(ctx context.Context, what string, f func(context.Context, *clientv3.Client) error) error {
	rctx, cancel := context.WithTimeout(ctx, rpcTimeout)
	defer cancel()
	c, err := s.connect(rctx)
	if err == nil {
		err = f(rctx, c)
	}
	err = s.explain(ctx, what, err)
	s.noteAnswer(ctx, 0, err)
	return err
}

// noteAnswer reports an RPC to StoreHealth: its explained error, and otherwise the revision of
// the answer, 0 if it is not known. An error that the end of ctx caused says nothing about etcd.
func (s *Store) noteAnswer(ctx context.Context, revision int64, err error) {
	switch {
	case err == nil:
		s.Answered(revision, nil)
	case ctx.Err() != nil || errors.Is(err, errClosed):
	case ambiguous(err):
		s.Failed(err)
	default:
		s.Answered(0, err)
	}
}

// callError is an error of etcd or of the way to it, in one sentence.
type callError struct {
	text string
	err  error
}

// Error implements error.
func (e *callError) Error() string { return e.text }

// Unwrap lets errors.Is and errors.As see the cause.
func (e *callError) Unwrap() error { return e.err }

func (s *Store) explain(ctx context.Context, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
	reason := err.Error()
	if st, ok := status.FromError(err); ok {
		reason = st.Message() // without "rpc error: code = "
	}
	text := fmt.Sprintf("%s: etcd at %s: %s", what, s.endpoints(), reason)
	switch c := code(err); {
	case c == codes.Unavailable || c == codes.DeadlineExceeded:
		err = control.WithReason(control.ReasonUnreachable, err)
		text = fmt.Sprintf("%s: etcd at %s does not answer: %s (does it run, and are the endpoints right?)", what, s.endpoints(), reason)
	case errors.Is(err, rpctypes.ErrAuthFailed) || errors.Is(err, rpctypes.ErrUserEmpty) || errors.Is(err, rpctypes.ErrPermissionDenied):
		text = fmt.Sprintf("%s: etcd at %s refuses user %q: %s (check user name, password and the user's rights below %s/)",
			what, s.endpoints(), s.cfg.Username, reason, s.keys.prefix)
	}
	return &callError{text: text, err: err}
}

// code returns the gRPC status of an error of the client in any of its forms.
func code(err error) codes.Code {
	var e rpctypes.EtcdError
	switch {
	case errors.As(err, &e):
		return e.Code()
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	}
	return status.Code(err)
}

// ambiguous reports whether the request that err ended may have taken effect, or
// may yet do so.
func ambiguous(err error) bool {
	switch code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.Unknown:
		return true
	}
	return false
}

// txn runs one transaction. It is sent once: the client does not repeat writes.
func (s *Store) txn(ctx context.Context, what string, ifs []clientv3.Cmp, then, els []clientv3.Op) (*clientv3.TxnResponse, error) {
	var resp *clientv3.TxnResponse
	err := s.call(ctx, what, func(ctx context.Context, c *clientv3.Client) (err error) {
		resp, err = c.Txn(ctx).If(ifs...).Then(then...).Else(els...).Commit()
		return err
	})
	if err == nil {
		s.noteAnswer(ctx, resp.Header.Revision, nil)
	}
	return resp, err
}

// get reads one key.
func (s *Store) get(ctx context.Context, what, key string) (*clientv3.GetResponse, error) {
	var resp *clientv3.GetResponse
	err := s.call(ctx, what, func(ctx context.Context, c *clientv3.Client) (err error) {
		resp, err = c.Get(ctx, key)
		return err
	})
	if err == nil {
		s.noteAnswer(ctx, resp.Header.Revision, nil)
	}
	return resp, err
}

// leaseID is the id of an etcd lease. This node chooses it, so that a grant whose
// reply is lost can be repeated, used and revoked all the same.
type leaseID int64

// newLeaseID returns an id of a node's own: its upper half says which node chose it, so that an
// entry says who wrote it, whatever its address is now. Without a node all of it is random.
func newLeaseID(node string) leaseID {
	tag := leaseTag(node)
	if node == "" {
		tag = rand.Int32()
	}
	return leaseID(int64(tag)<<32 | (1 + rand.Int64N(1<<32-1)))
}

// leaseTag is the upper half of the ids that a node chooses.
func leaseTag(node string) int32 {
	sum := sha256.Sum256([]byte("overlayd etcd lease " + node))
	return int32(binary.BigEndian.Uint32(sum[:]) & math.MaxInt32)
}

// hasTag reports whether a node with this tag has chosen id.
func (id leaseID) hasTag(tag int32) bool { return int64(id)>>32 == int64(tag) }

// grant makes the etcd lease id and returns when it ends.
func (s *Store) grant(ctx context.Context, id leaseID, ttl time.Duration) (expires time.Time, err error) {
	begin := time.Now()
	err = s.call(ctx, "grant etcd lease", func(ctx context.Context, c *clientv3.Client) error {
		req := &pb.LeaseGrantRequest{ID: int64(id), TTL: int64(ttl / time.Second)}
		resp, err := clientv3.RetryLeaseClient(c).LeaseGrant(ctx, req)
		switch err := rpctypes.Error(err); {
		case errors.Is(err, rpctypes.ErrLeaseExist): // the reply to an earlier try was lost
			return nil
		case err != nil:
			return err
		}
		ttl = time.Duration(resp.TTL) * time.Second // etcd has a minimum
		return nil
	})
	return begin.Add(ttl), err
}

// refresh extends an etcd lease once. rpctypes.ErrLeaseNotFound: it has
// expired or was revoked.
func (s *Store) refresh(ctx context.Context, id leaseID) (expires time.Time, err error) {
	expires, err = s.keepAlive(ctx, id)
	if errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision) || errors.Is(err, rpctypes.ErrUserEmpty) {
		if _, err := s.get(ctx, "renew token", s.keys.config()); err != nil { // see failFastStream
			return time.Time{}, err
		}
		return s.keepAlive(ctx, id)
	}
	return expires, err
}

func (s *Store) keepAlive(ctx context.Context, id leaseID) (expires time.Time, err error) {
	begin := time.Now()
	var ttl int64
	err = s.call(ctx, "keep etcd lease alive", func(ctx context.Context, c *clientv3.Client) error {
		// clientv3's KeepAliveOnce repeats without a pause while etcd is down.
		ctx, cancel := context.WithCancel(ctx) // ends the stream
		defer cancel()
		stream, err := pb.NewLeaseClient(c.ActiveConnection()).LeaseKeepAlive(ctx)
		if err != nil {
			return rpctypes.Error(err)
		}
		if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
			return rpctypes.Error(err)
		}
		resp, err := stream.Recv()
		if err != nil {
			return rpctypes.Error(err)
		}
		ttl = resp.TTL
		return nil
	})
	if err == nil && ttl <= 0 {
		err = rpctypes.ErrLeaseNotFound
	}
	return begin.Add(time.Duration(ttl) * time.Second), err
}

// revoke ends an etcd lease and deletes what is attached to it. One that is gone
// is not an error.
func (s *Store) revoke(ctx context.Context, id leaseID) error {
	err := s.call(ctx, "revoke etcd lease", func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Revoke(ctx, clientv3.LeaseID(id))
		return err
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return err
}

// retire revokes an etcd lease that an entry of this node hung on, or was to hang
// on, so that it does not stay for a day. Should anything hang on it, it is left, and
// so it is where etcd does not answer: it does no harm until it expires.
func (s *Store) retire(ctx context.Context, id leaseID) {
	if id == 0 {
		return
	}
	ctx, cancel := cleanupContext(ctx)
	defer cancel()
	var keys int
	err := s.call(ctx, "look up etcd lease", func(ctx context.Context, c *clientv3.Client) error {
		resp, err := c.TimeToLive(ctx, clientv3.LeaseID(id), clientv3.WithAttachedKeys())
		if err == nil {
			keys = len(resp.Keys)
		}
		return err
	})
	if err == nil && keys == 0 {
		err = s.revoke(ctx, id)
	}
	if err != nil {
		s.log.DebugContext(ctx, "old etcd lease left to expire", "err", err)
	}
}

// abandon revokes an etcd lease that a failure leaves behind, with what hangs on it.
func (s *Store) abandon(ctx context.Context, id leaseID) {
	ctx, cancel := cleanupContext(ctx)
	defer cancel()
	if err := s.revoke(ctx, id); err != nil {
		s.log.DebugContext(ctx, "unused etcd lease left to expire", "err", err)
	}
}

// cleanupContext is for what is to be done even after ctx has ended, but then not for
// long.
func cleanupContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Err() == nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
}
