package etcdrpc

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// This file has what etcd 3.4 needs, which Debian 12 has. It refuses older ones.

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
	if err := c.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer c.turn.Release(1)
	if c.client != e {
		return nil // somebody else was faster
	}
	return c.end()
}

// oldestMinor is the oldest minor version of etcd 3 that is known to work.
const oldestMinor = 4

// check finds out whether an etcd is too old.
type check struct {
	done chan struct{} // closed at its end
	err  error         // valid after that
}

// startCheck begins a check, which ends with ctx.
func startCheck(ctx context.Context, e *clientv3.Client) *check {
	c := &check{done: make(chan struct{})}
	go func() { // Client.end waits for it
		defer close(c.done)
		ctx, cancel := context.WithTimeout(ctx, rpcTimeout)
		defer cancel()
		c.err = checkVersion(ctx, e)
	}()
	return c
}

// checkVersion refuses an etcd that is too old. One that does not say its version is accepted.
func checkVersion(ctx context.Context, e *clientv3.Client) error {
	resp, err := pb.NewMaintenanceClient(e.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
	if err != nil {
		return nil // the call that needs the connection says what is wrong
	}
	return checkVersionText(resp.Version)
}

func checkVersionText(version string) error {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 3 {
		return nil
	}
	major, err := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	if err != nil || err2 != nil || major > 3 || major == 3 && minor >= oldestMinor {
		return nil
	}
	return fmt.Errorf("etcd has version %.20q: want 3.%d or newer", version, oldestMinor)
}
