package etcdrpc

import (
	"context"
	"errors"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// staleToken is the text of errors that say that etcd does not know the token of a client any more, and
// that the client cannot get another one.
const staleToken = "etcd does not know the token of this connection any more"

// breakLoop replaces an error of Authenticate which clientv3 answers with another Authenticate. An etcd before
// 3.5 gives it if the connection has a stale token, which it looks at in that call too. clientv3 would call again
// with the same token, and again from within that call, until the time of the first call is over.
func breakLoop(method string, err error) error {
	if method == pb.Auth_Authenticate_FullMethodName && errors.Is(rpctypes.Error(err), rpctypes.ErrInvalidAuthToken) {
		return status.Error(codes.FailedPrecondition, staleToken)
	}
	return err
}

func isStaleToken(err error) bool { return err != nil && strings.Contains(err.Error(), staleToken) }

// drop ends a client that cannot get a token, so that the next call makes another, which has none.
func (c *Client) drop(ctx context.Context, e *clientv3.Client) error {
	return c.dropIf(ctx, e, func() bool { return true })
}

func (c *Client) dropIf(ctx context.Context, e *clientv3.Client, useless func() bool) error {
	if err := c.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer c.turn.Release(1)
	if c.client != e || !useless() { // not e: somebody else was faster
		return nil
	}
	return c.end()
}

// dropAwaited ends a client whose calls are not answered, if the cause may be its token. A token names the entry of etcd's
// log at which it was made, and etcd answers a call with a token when its log is that long. One that was restored from an
// older snapshot has a shorter log: it neither answers nor refuses the token. Only a connection that is younger than the
// token can lead to another etcd than the one that made it.
func (c *Client) dropAwaited(e *clientv3.Client) error {
	if c.cfg.Username == "" || e == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // that of the call is over
	defer cancel()
	return c.dropIf(ctx, e, func() bool {
		younger := c.conns.newest().After(c.made)
		if younger {
			c.cfg.Log.InfoContext(ctx, "etcd does not answer: connecting again with another token", "endpoints", c.cfg.Endpoints)
		}
		return younger
	})
}

// needsToken reports whether etcd refused a call because it had no token, or one that etcd does not know.
func needsToken(err error) bool {
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision) || errors.Is(err, rpctypes.ErrUserEmpty)
}
