package etcdrpc

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// LeaseID is the id of an etcd lease. This node chooses it, so that a grant whose
// reply is lost can be repeated, used and revoked all the same.
type LeaseID int64

// NewLeaseID returns an id of a node's own: its upper half says which node chose it, so that an
// entry says who wrote it, whatever its address is now. Without a node all of it is random.
func NewLeaseID(node string) LeaseID {
	tag := LeaseTag(node)
	if node == "" {
		tag = rand.Int32()
	}
	return LeaseID(int64(tag)<<32 | (1 + rand.Int64N(1<<32-1)))
}

// LeaseTag is the upper half of the ids that a node chooses.
func LeaseTag(node string) int32 {
	sum := sha256.Sum256([]byte("overlayd etcd lease " + node))
	return int32(binary.BigEndian.Uint32(sum[:]) & math.MaxInt32)
}

// HasTag reports whether a node with this tag has chosen id.
func (id LeaseID) HasTag(tag int32) bool { return int64(id)>>32 == int64(tag) }

// Grant makes the etcd lease id and returns when it ends.
func (c *Caller) Grant(ctx context.Context, id LeaseID, ttl time.Duration) (expires time.Time, err error) {
	begin := time.Now()
	err = c.Call(ctx, "grant etcd lease", func(ctx context.Context, e *clientv3.Client) error {
		req := &pb.LeaseGrantRequest{ID: int64(id), TTL: int64(ttl / time.Second)}
		resp, err := clientv3.RetryLeaseClient(e).LeaseGrant(ctx, req)
		switch err := rpctypes.Error(err); {
		case errors.Is(err, rpctypes.ErrLeaseExist): // the reply to an earlier try was lost
			return nil
		case err != nil:
			return err
		}
		ttl = seconds(resp.TTL) // etcd has a minimum
		return nil
	})
	return begin.Add(ttl), err
}

// maxTTL bounds a TTL that an etcd says: that of a real one is 9 000 000 000 seconds at most, and one of more may be no time.Duration.
const maxTTL = 100 * 365 * 24 * time.Hour

// seconds returns a TTL of etcd. One that is gone has -1.
func seconds(n int64) time.Duration {
	return time.Duration(max(-1, min(n, int64(maxTTL/time.Second)))) * time.Second
}

// Refresh extends an etcd lease once. rpctypes.ErrLeaseNotFound: it has
// expired or was revoked.
func (c *Caller) Refresh(ctx context.Context, id LeaseID) (expires time.Time, err error) {
	expires, err = c.keepAlive(ctx, id)
	if needsToken(err) {
		if _, err := c.Get(ctx, "renew token", c.prefix+"/config"); err != nil { // see failFastStream
			return time.Time{}, err
		}
		return c.keepAlive(ctx, id)
	}
	return expires, err
}

// lateKeepAlive is how long the answer to a request to keep a lease alive is waited for.
const lateKeepAlive = rpcTimeout / 4

// keepAlive extends an etcd lease. While etcd grpc-proxy keeps a lease alive for somebody, it answers only when it next does so, after
// a third of the TTL. In that case what counts is the time that the lease has left.
func (c *Caller) keepAlive(ctx context.Context, id LeaseID) (expires time.Time, err error) {
	begin := time.Now()
	var ttl int64
	err = c.Call(ctx, "keep etcd lease alive", func(ctx context.Context, e *clientv3.Client) error {
		short, cancel := context.WithTimeout(ctx, lateKeepAlive) // its end is that of the stream
		defer cancel()
		resp, err := keepAliveOnce(short, e, id)
		if err == nil {
			ttl = resp.TTL
			return nil
		}
		if short.Err() == nil || ctx.Err() != nil {
			return err
		}
		begin = time.Now()
		left, err := e.TimeToLive(ctx, clientv3.LeaseID(id))
		if err == nil {
			ttl = left.TTL
		}
		return err
	})
	if err == nil && ttl <= 0 {
		err = rpctypes.ErrLeaseNotFound
	}
	return begin.Add(seconds(ttl)), err
}

// keepAliveOnce stands in the place of clientv3's KeepAliveOnce, which repeats without a pause while etcd is down.
func keepAliveOnce(ctx context.Context, e *clientv3.Client, id LeaseID) (*pb.LeaseKeepAliveResponse, error) {
	stream, err := pb.NewLeaseClient(e.ActiveConnection()).LeaseKeepAlive(ctx)
	if err != nil {
		return nil, rpctypes.Error(err)
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
		return nil, rpctypes.Error(err)
	}
	resp, err := stream.Recv()
	return resp, rpctypes.Error(err)
}

// Revoke ends an etcd lease and deletes what is attached to it. One that is gone
// is not an error.
func (c *Caller) Revoke(ctx context.Context, id LeaseID) error {
	return c.Call(ctx, "revoke etcd lease", func(ctx context.Context, e *clientv3.Client) error {
		_, err := e.Revoke(ctx, clientv3.LeaseID(id))
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return nil
		}
		return err
	})
}

// Retire revokes an etcd lease that an entry of this node hung on, or was to hang
// on, so that it does not stay for a day. It is left if anything hangs on it, or if
// etcd does not answer: it does no harm until it expires.
func (c *Caller) Retire(ctx context.Context, id LeaseID) {
	if id == 0 {
		return
	}
	ctx, cancel := cleanupContext(ctx)
	defer cancel()
	var keys int
	err := c.Call(ctx, "look up etcd lease", func(ctx context.Context, e *clientv3.Client) error {
		resp, err := e.TimeToLive(ctx, clientv3.LeaseID(id), clientv3.WithAttachedKeys())
		if err == nil {
			keys = len(resp.Keys)
		}
		return err
	})
	if err == nil && keys == 0 {
		err = c.Revoke(ctx, id)
	}
	if err != nil {
		c.log.DebugContext(ctx, "old etcd lease left to expire", "err", err)
	}
}

// TimeLeft returns how long an etcd lease lasts unless it is kept alive, in whole seconds, and how long it was when
// that was last done. One that is gone has no time left.
func (c *Caller) TimeLeft(ctx context.Context, id LeaseID) (left, granted time.Duration, err error) {
	err = c.Call(ctx, "look up etcd lease", func(ctx context.Context, e *clientv3.Client) error {
		resp, err := e.TimeToLive(ctx, clientv3.LeaseID(id))
		if err == nil {
			left, granted = seconds(resp.TTL), seconds(resp.GrantedTTL)
		}
		return err
	})
	return left, granted, err
}

// Abandon revokes an etcd lease that a failure leaves behind, with what hangs on it.
func (c *Caller) Abandon(ctx context.Context, id LeaseID) {
	ctx, cancel := cleanupContext(ctx)
	defer cancel()
	if err := c.Revoke(ctx, id); err != nil {
		c.log.DebugContext(ctx, "unused etcd lease left to expire", "err", err)
	}
}

// CloseTimeout bounds what is cleaned up after all else has ended.
const CloseTimeout = 300 * time.Millisecond

// cleanupContext returns a context for what must be done even after ctx has ended. In that case it ends
// after CloseTimeout.
func cleanupContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Err() == nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(context.WithoutCancel(ctx), CloseTimeout)
}
