package etcdrpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/overlayd/overlayd/control"
)

// ErrClosed is the error of each call after Close.
var ErrClosed = errors.New("etcd store is closed")

// Caller makes the calls of one user of a Client. Each has a timeout, and an error that says in one
// sentence what was tried, and where. Its methods may be called from several goroutines.
type Caller struct {
	client *Client
	prefix string        // of the keys
	relist time.Duration // how long a stream is trusted
	health *control.StoreHealth
	log    *slog.Logger
	closed atomic.Bool
	most   atomic.Int64 // how many keys a page of the next Scan may have; 0: as many as its size
}

// Close ends the calls that begin from now on, and leaves the connection to others.
func (c *Caller) Close() { c.closed.Store(true) }

// Endpoints returns the endpoints of etcd, for a message.
func (c *Caller) Endpoints() string { return strings.Join(c.client.cfg.Endpoints, ",") }

// Unused returns the endpoints that answer and are not used.
func (c *Caller) Unused() []control.UnusedEndpoint { return c.client.conns.endpoints.members.list() }

// connect returns the client of an etcd that is new enough.
func (c *Caller) connect(ctx context.Context) (*clientv3.Client, error) {
	return c.try(ctx, false, func(context.Context, *clientv3.Client) error { return nil })
}

// Call runs one RPC with a timeout and makes its error say what was tried.
func (c *Caller) Call(ctx context.Context, what string, f func(context.Context, *clientv3.Client) error) error {
	return c.call(ctx, what, false, f)
}

// call is Call. It does not wait for the version of etcd before it reads.
func (c *Caller) call(ctx context.Context, what string, reads bool, f func(context.Context, *clientv3.Client) error) error {
	rctx, cancel := context.WithTimeout(ctx, rpcTimeout)
	defer cancel()
	e, err := c.try(rctx, reads, f)
	if isStaleToken(err) { // and so etcd has not done what was asked
		if err = c.client.drop(rctx, e); err == nil {
			_, err = c.try(rctx, reads, f)
		}
	}
	if err != nil && ctx.Err() == nil && rctx.Err() != nil {
		if failed := c.client.dropAwaited(e); failed != nil {
			err = errors.Join(err, failed)
		}
	}
	err = c.explain(ctx, what, err)
	c.noteAnswer(ctx, 0, err)
	return err
}

func (c *Caller) try(ctx context.Context, reads bool, f func(context.Context, *clientv3.Client) error) (*clientv3.Client, error) {
	if c.closed.Load() {
		return nil, ErrClosed
	}
	e, check, err := c.client.connect(ctx)
	if err != nil {
		return nil, err
	}
	if reads {
		err = f(ctx, e)
	}
	select {
	case <-check.done:
	case <-ctx.Done():
		return e, errors.Join(err, ctx.Err())
	}
	if check.err != nil {
		return nil, errors.Join(check.err, c.client.drop(ctx, e)) // another one may answer the next time
	}
	if !reads {
		err = f(ctx, e)
	}
	return e, err
}

// noteAnswer reports an RPC to StoreHealth: its explained error, and otherwise the revision of
// the answer; 0 if it is not known, as that of requests which etcd takes from every user. An error that the end of ctx caused says nothing about etcd.
func (c *Caller) noteAnswer(ctx context.Context, revision int64, err error) {
	switch {
	case err == nil && revision == 0:
		c.health.Heard(0)
	case err == nil:
		c.health.Answered(revision, nil)
	case ctx.Err() != nil || errors.Is(err, ErrClosed):
	case Ambiguous(err):
		c.health.Failed(err)
	default:
		c.health.Answered(0, err)
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

func (c *Caller) explain(ctx context.Context, what string, err error) error {
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
	text := fmt.Sprintf("%s: etcd at %s: %s", what, c.Endpoints(), reason)
	switch status := code(err); {
	case status == codes.Unavailable || status == codes.DeadlineExceeded:
		text = fmt.Sprintf("%s: etcd at %s does not answer: %s (does it run, and are the endpoints right?)", what, c.Endpoints(), reason)
		if why := refusedTLS(reason); why != nil {
			text = fmt.Sprintf("%s: etcd at %s: %v%s: %s", what, c.Endpoints(), why, c.client.files.part(why), reason)
			err = fmt.Errorf("%w: %w", why, err)
		}
		err = control.WithReason(control.ReasonUnreachable, err)
	case isLearner(err):
		text = fmt.Sprintf("%s: etcd at %s: %v: %s", what, c.Endpoints(), errLearner, fixOf(errLearner))
	case needsToken(err) || isStaleToken(err) || errors.Is(err, rpctypes.ErrAuthFailed) || errors.Is(err, rpctypes.ErrPermissionDenied):
		text = fmt.Sprintf("%s: etcd at %s refuses user %q: %s (check user name, password and the user's rights below %s/)",
			what, c.Endpoints(), c.client.cfg.Username, reason, c.prefix)
		err = fmt.Errorf("%w: %w", control.ErrUser, err)
	}
	return &callError{text: text, err: err}
}

// refusedTLS returns why the two sides do not agree on TLS; nil: it is not that. gRPC has the error of a connection as a text only.
func refusedTLS(reason string) error {
	for _, r := range []struct {
		part string
		why  error
	}{
		{"x509: certificate is valid for ", control.ErrOtherName}, // these three are x509.HostnameError
		{"x509: certificate is not valid for any names", control.ErrOtherName},
		{"x509: cannot validate certificate for ", control.ErrOtherName},
		{"x509: certificate has expired or is not yet valid", control.ErrNotValidNow},
		{"x509: ", control.ErrUntrusted},
		{"tls: failed to verify certificate", control.ErrUntrusted},
		{"remote error: tls: ", control.ErrNoAccess},
		{rejected, control.ErrNoAccess},
		{"first record does not look like a TLS handshake", control.ErrScheme},
		{"authentication handshake failed: EOF", control.ErrScheme},
		{"error reading server preface: EOF", control.ErrScheme}, // of a server that closes what is no TLS
		{"error reading server preface: http2: ", control.ErrScheme},
	} {
		if strings.Contains(reason, r.part) {
			return r.why
		}
	}
	return nil
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

// Ambiguous reports whether the request that err ended may have taken effect, or
// may yet do so.
func Ambiguous(err error) bool {
	switch code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.Unknown:
		return true
	}
	return false
}

// refusals are the errors of an etcd that answers and does not write now, with what to do.
var refusals = []struct {
	err error
	fix string
}{
	{rpctypes.ErrNoSpace, "give etcd space (compact and defragment it, or raise its quota), and then `etcdctl alarm disarm`"},
	{rpctypes.ErrCorrupt, "find the member with other data (`etcdctl endpoint hashkv --cluster`), replace it, and then `etcdctl alarm disarm`"},
	{rpctypes.ErrPermissionDenied, "give the user the right to write"},
	{rpctypes.ErrTooManyRequests, "look for what loads etcd, or makes its disk slow"},
}

// Refused reports whether etcd answered that it does not write now: its space is used up, its members differ, the user may
// not write, or it has too much to do. The request that err ended had no effect.
func Refused(err error) bool { return FixOfRefusal(err) != "" }

// FixOfRefusal returns what to do about an error that is Refused; "": it is not.
func FixOfRefusal(err error) string {
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			return r.fix
		}
	}
	return ""
}

// Txn runs one transaction. It is sent once: the client does not repeat writes.
func (c *Caller) Txn(ctx context.Context, what string, ifs []clientv3.Cmp, then, els []clientv3.Op) (*clientv3.TxnResponse, error) {
	var resp *clientv3.TxnResponse
	err := c.Call(ctx, what, func(ctx context.Context, e *clientv3.Client) (err error) {
		resp, err = e.Txn(ctx).If(ifs...).Then(then...).Else(els...).Commit()
		return err
	})
	if err == nil {
		c.noteAnswer(ctx, resp.Header.Revision, nil)
	}
	return resp, err
}

// Get reads one key.
func (c *Caller) Get(ctx context.Context, what, key string) (*clientv3.GetResponse, error) {
	var resp *clientv3.GetResponse
	err := c.call(ctx, what, true, func(ctx context.Context, e *clientv3.Client) (err error) {
		resp, err = e.Get(ctx, key)
		return err
	})
	if err == nil {
		c.noteAnswer(ctx, resp.Header.Revision, nil)
	}
	return resp, err
}
