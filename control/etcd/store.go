package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
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
	// maxReconnectDelay bounds gRPC's own backoff. Together with maxWatchDelay, and both
	// with their jitter, it makes a watch find an etcd that is back within 2 s.
	maxReconnectDelay = time.Second
	connectTimeout    = 2 * time.Second
	closeTimeout      = 300 * time.Millisecond // of what is cleaned up when all else has ended
)

// Store is control.Store on etcd. Its methods may be called from several goroutines.
type Store struct {
	cfg  Config
	tls  *tls.Config
	keys keys
	log  *slog.Logger

	claims turn // of whoever makes this node's record, or withdraws it for good

	mu      sync.Mutex // of the fields below
	client  *clientv3.Client
	cancel  context.CancelFunc // ends client
	closing bool               // Close has begun: no new record
	closed  bool               // no new client
	node    *record            // nil before Acquire and after Release

	control.StoreHealth
}

var (
	_ control.Store          = (*Store)(nil)
	_ control.ConfigWatcher  = (*Store)(nil)
	_ control.ConfigWriter   = (*Store)(nil)
	_ control.Publisher      = (*Store)(nil)
	_ control.LiveNodeFinder = (*Store)(nil)
	_ control.StoreReporter  = (*Store)(nil)
	_ io.Closer              = (*Store)(nil)
)

// Open checks cfg and returns a Store. It reaches no server: the first call does,
// and every later one may, so an etcd that is down is no error here. An error names
// the setting and its value. ctx bounds Open alone. The caller must Close the Store.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	t, err := cfg.tlsConfig()
	if err != nil {
		return nil, err
	}
	warnOfEndpoints(ctx, cfg, t != nil)
	return &Store{cfg: cfg, tls: t, keys: keys{prefix: cfg.Prefix}, log: cfg.Log, claims: newTurn(),
		StoreHealth: control.StoreHealth{Kind: "etcd"}}, ctx.Err()
}

// warnOfEndpoints says once what crosses a network in the clear.
func warnOfEndpoints(ctx context.Context, cfg Config, files bool) {
	var clear []string
	for _, e := range cfg.Endpoints {
		if exposed(e) {
			clear = append(clear, e)
		}
		if files && strings.HasPrefix(e, "http://") {
			cfg.Log.WarnContext(ctx, "certificate files for etcd are not used with an http endpoint; use https", "endpoint", e)
		}
	}
	switch {
	case len(clear) == 0:
	case cfg.Password != "":
		cfg.Log.WarnContext(ctx, "etcd is reached unencrypted, and its password with it; use https", "endpoints", clear)
	default:
		cfg.Log.WarnContext(ctx, "etcd is reached unencrypted: whoever is on the way can change every route; use https", "endpoints", clear)
	}
}

// Close withdraws the node's sign of life, if etcd answers within 300 ms, and ends
// every connection; an Acquire that still runs withdraws its own meanwhile. Leases
// stay: they are for the next run. Watches must have been ended through their
// contexts before.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	waited := s.claims.lock(ctx) == nil
	s.unclaim(ctx)
	if waited {
		s.claims.unlock()
	}
	cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.client
	s.client, s.closed = nil, true
	if c == nil {
		return nil
	}
	defer s.cancel()
	if err := ignoreCanceled(c.Close()); err != nil {
		return fmt.Errorf("close etcd client: %w", err)
	}
	return nil
}

func (s *Store) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

var errClosed = errors.New("etcd store is closed")

// connect returns the client. It is made at the first call and not in Open,
// because with a user name the client asks the server for a token right away.
func (s *Store) connect(ctx context.Context) (*clientv3.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	if s.client != nil {
		return s.client, nil
	}
	base, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the client outlives ctx, but not its making
	stop := context.AfterFunc(ctx, cancel)
	c, err := clientv3.New(s.clientConfig(base))
	switch interrupted := !stop(); {
	case err != nil:
		cancel()
		return nil, err
	case interrupted:
		return nil, errors.Join(ctx.Err(), ignoreCanceled(c.Close()))
	}
	s.client, s.cancel = c, cancel
	return c, nil
}

func (s *Store) clientConfig(base context.Context) clientv3.Config {
	retry := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxReconnectDelay}
	return clientv3.Config{
		Context:              base,
		Endpoints:            s.cfg.Endpoints,
		DialTimeout:          rpcTimeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		TLS:                  s.tls,
		Username:             s.cfg.Username,
		Password:             s.cfg.Password,
		MaxUnaryRetries:      5, // of reads, 25 ms apart; with the default of 100 the reason is lost in a timeout
		Logger:               zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: connectTimeout}),
			grpc.WithChainUnaryInterceptor(failFast),
			grpc.WithStreamInterceptor(failFastStream), // and not clientv3's own, see there
		},
	}
}

// failFast and failFastStream undo clientv3's WaitForReady: without a connection a
// call ends at once and says why ("connection refused"), and not with a timeout.
//
// failFastStream stands in the place of clientv3's stream interceptor, which asks for a new
// token for each stream, and that costs etcd some 60 ms of a core (bcrypt). Here a stream uses
// the token that there is, which clientv3 renews when a call that is no stream finds it not
// valid any more: the list before each watch is one, and see Store.refresh.
func failFast(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(ctx, method, req, reply, cc, append(opts, grpc.WaitForReady(false))...)
}

func failFastStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return open(ctx, desc, cc, method, append(opts, grpc.WaitForReady(false))...)
}

// ignoreCanceled drops the error that clientv3's Close returns for having closed.
func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// Network implements control.Store.
func (s *Store) Network(ctx context.Context) (control.Network, error) {
	got, err := s.get(ctx, "read network config", s.keys.config())
	if err != nil {
		return control.Network{}, err
	}
	return s.parseNetwork(got)
}

func (s *Store) parseNetwork(got *clientv3.GetResponse) (control.Network, error) {
	if len(got.Kvs) == 0 {
		return control.Network{}, fmt.Errorf("%w: etcd at %s has no key %s", control.ErrNoNetwork, s.endpoints(), s.keys.config())
	}
	n, err := control.ParseNetwork(got.Kvs[0].Value)
	if err != nil {
		return control.Network{}, fmt.Errorf("key %s: %w", s.keys.config(), err)
	}
	return n, nil
}

// Init writes the network config if there is none. It reports whether it did.
// A config that is not valid is a *control.NetworkError and is not written.
func (s *Store) Init(ctx context.Context, config []byte) (created bool, err error) {
	if _, err := control.ParseNetwork(config); err != nil {
		return false, err
	}
	key := s.keys.config()
	absent := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	resp, err := s.txn(ctx, "write network config", []clientv3.Cmp{absent}, []clientv3.Op{clientv3.OpPut(key, string(config))}, nil)
	if err != nil {
		return false, err
	}
	return resp.Succeeded, nil
}

func (s *Store) endpoints() string { return strings.Join(s.cfg.Endpoints, ",") }
