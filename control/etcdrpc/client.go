package etcdrpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/overlayd/overlayd/control"
)

const (
	// A half-open connection is found after both: within 15 s (facts F14). gRPC
	// raises anything below 10 s.
	keepAliveTime    = 10 * time.Second
	keepAliveTimeout = 4 * time.Second
	// rpcTimeout bounds every call: it is longer than etcd takes to elect a leader.
	rpcTimeout = 5 * time.Second
	// maxReconnectDelay bounds gRPC's own backoff. Together with maxWatchDelay, and both with their jitter, it makes a watch find an
	// etcd within 2 s that is back and had refused connections. For one that was silent see maxConnectTimeout.
	maxReconnectDelay = time.Second
)

// Client is one connection to etcd. Its methods may be called from several goroutines.
type Client struct {
	cfg   Config
	files *certFiles // nil: no file is given
	conns *connTracker
	pass  *password

	turn   *semaphore.Weighted // of the fields below
	client *clientv3.Client
	made   time.Time          // client, and its first token
	cancel context.CancelFunc // ends client
	check  *check             // of client's server
	closed bool               // no new client
}

// Open checks cfg and returns a Client. It reaches no server: the first call does, and every
// later one may, so an etcd that is down is not an error here. An error names the setting and
// its value. ctx bounds Open alone.
func Open(ctx context.Context, cfg Config) (*Client, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	files, err := openFiles(cfg)
	if err != nil {
		return nil, err
	}
	warnOfEndpoints(ctx, cfg, files != nil)
	c := &Client{cfg: cfg, files: files, conns: newConnTracker(cfg.Endpoints[0], files, cfg.Log),
		pass: &password{read: cfg.ReadPassword, log: cfg.Log, last: cfg.Password}, turn: semaphore.NewWeighted(1)}
	c.conns.endpoints = &endpoints{names: cfg.Endpoints, members: &members{log: cfg.Log}, username: cfg.Username, password: c.pass}
	c.conns.patience.log = cfg.Log
	return c, ctx.Err()
}

// warnOfEndpoints logs which endpoints are reached over a network without encryption.
func warnOfEndpoints(ctx context.Context, cfg Config, files bool) {
	var clear []string
	for _, e := range cfg.Endpoints {
		if exposed(e, files) {
			clear = append(clear, e)
		}
		if files && strings.HasPrefix(e, "http://") {
			cfg.Log.WarnContext(ctx, "certificate files are not used for an http endpoint of etcd; use https", "endpoint", e)
		}
	}
	switch {
	case len(clear) == 0:
	case cfg.Password != "":
		cfg.Log.WarnContext(ctx, "connection to etcd is not encrypted, and the password is sent over it; use https", "endpoints", clear)
	case !cfg.Quiet:
		cfg.Log.WarnContext(ctx, "connection to etcd is not encrypted: anyone on the path can change routes; use https", "endpoints", clear)
	}
}

// Caller returns one user of the connection: prefix is that of the keys it uses, relist how long it trusts
// a stream (within ±10 %). It reports each answer to health.
func (c *Client) Caller(prefix string, relist time.Duration, health *control.StoreHealth, log *slog.Logger) *Caller {
	return &Caller{client: c, prefix: prefix, relist: relist, health: health, log: log}
}

// Remotes returns the addresses of the servers that the Client is connected to, sorted.
func (c *Client) Remotes() []netip.Addr { return c.conns.conns.Remotes() }

// CloseStale closes the connections whose local address this host no longer has.
func (c *Client) CloseStale(log *slog.Logger) { c.conns.closeStale(log) }

// ReadCertificates reads the certificate files again, and closes connections that were made with others: they are made
// again at once. An error names the file that cannot be used, and closes nothing.
func (c *Client) ReadCertificates() (control.CertificateState, error) {
	if c.files == nil {
		return control.CertificatesNone, nil
	}
	now, err := c.files.read()
	if err != nil {
		return control.CertificatesSame, err
	}
	if c.conns.closeOthers(now.sum) == 0 {
		return control.CertificatesSame, nil
	}
	return control.CertificatesChanged, nil
}

// Close ends the connection. Every later call of a Caller fails.
func (c *Client) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), rpcTimeout)
	defer cancel()
	if err := c.turn.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("close etcd client: %w", err)
	}
	defer c.turn.Release(1)
	c.closed = true
	if c.client == nil {
		return nil
	}
	if err := c.end(); err != nil {
		return fmt.Errorf("close etcd client: %w", err)
	}
	return nil
}

// end ends the client. The caller has the turn.
func (c *Client) end() error {
	err := ignoreCanceled(c.client.Close())
	c.cancel()
	<-c.check.done
	c.client = nil
	return err
}

// connect returns the client, and the check of its server's version, which may still run. It is made at the first call and
// not in Open, because with a user name the client asks the server for a token right away.
func (c *Client) connect(ctx context.Context) (*clientv3.Client, *check, error) {
	if err := c.turn.Acquire(ctx, 1); err != nil {
		return nil, nil, err
	}
	defer c.turn.Release(1)
	if c.closed {
		return nil, nil, ErrClosed
	}
	if c.client != nil {
		return c.client, c.check, nil
	}
	base, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the client outlives ctx, but not its making
	stop := context.AfterFunc(ctx, cancel)
	e, err := clientv3.New(c.clientConfig(base))
	switch interrupted := !stop(); {
	case err != nil:
		cancel()
		return nil, nil, err
	case interrupted:
		return nil, nil, errors.Join(ctx.Err(), ignoreCanceled(e.Close()))
	}
	c.client, c.made, c.cancel, c.check = e, time.Now(), cancel, startCheck(base, e)
	return e, c.check, nil
}

// grpcBuffer is the size of the buffers of a connection, in bytes; of the default, 32 KiB, three would stay in use. What is longer goes past them.
const grpcBuffer = 4 << 10

func (c *Client) clientConfig(base context.Context) clientv3.Config {
	retry := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxReconnectDelay}
	dial := append(c.cfg.dialOptions(c.conns),
		grpc.WithReadBufferSize(grpcBuffer), grpc.WithWriteBufferSize(grpcBuffer),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: maxConnectTimeout + time.Second}),
		grpc.WithTransportCredentials(c.conns), // in the place of clientv3's, which are the same but for the tracking
		grpc.WithChainUnaryInterceptor(failFast, checked, c.pass.renew),
		grpc.WithStreamInterceptor(failFastStream), // and not clientv3's own, see there
	)
	if len(c.cfg.Endpoints) > 1 { // in the place of clientv3's round_robin
		dial = append(dial, grpc.WithDisableServiceConfig(), grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"`+balancerName+`": {}}]}`))
	}
	return clientv3.Config{
		Context:              base,
		Endpoints:            c.cfg.Endpoints,
		DialTimeout:          rpcTimeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		TLS:                  c.files.tls(),
		MaxCallRecvMsgSize:   maxAnswer,
		Username:             c.cfg.Username,
		Password:             c.cfg.Password,
		MaxUnaryRetries:      5, // of reads, 25 ms apart; with the default of 100 the reason is lost in a timeout
		Logger:               zap.NewNop(),
		DialOptions:          dial,
	}
}

// failFast and failFastStream undo clientv3's WaitForReady: without a connection a
// call ends at once and says why ("connection refused"), and not with a timeout.
//
// failFastStream stands in the place of clientv3's stream interceptor, which asks for a new
// token for each stream, and that costs etcd some 60 ms of a core (bcrypt). Here a stream uses
// the token that there is, which clientv3 renews when a call that is not a stream finds it
// invalid: the list before each watch is such a call, and see Caller.Refresh.
func failFast(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return breakLoop(method, invoke(ctx, method, req, reply, cc, append(opts, grpc.WaitForReady(false))...))
}

func failFastStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return open(ctx, desc, cc, method, append(opts, grpc.WaitForReady(false))...)
}

// checked makes an answer that lacks what every etcd says an error: see checkAnswer.
func checked(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
		return err
	}
	return checkAnswer(req, reply)
}

// ignoreCanceled drops the error that clientv3's Close returns for having closed.
func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
