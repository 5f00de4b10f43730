package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
)

const closeTimeout = 300 * time.Millisecond // of what is cleaned up when all else has ended

// Store is control.Store on etcd. Its methods may be called from several goroutines.
type Store struct {
	etcd  *Client
	alone bool // nobody else uses etcd: it is closed with the Store
	cfg   Config
	keys  keys
	log   *slog.Logger

	claims turn // of whoever makes this node's record, or withdraws it for good

	mu      sync.Mutex  // of the fields below
	closing bool        // Close has begun: no new record
	closed  bool        // no more calls
	node    *nodeRecord // nil before Acquire and after Release

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

// Open returns the Store of the network whose keys are right below Config.Prefix, with a Client
// of its own: see OpenClient. The caller must Close it.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	c, err := OpenClient(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s := c.Store("", nil)
	s.alone = true
	return s, nil
}

// Close withdraws the node's sign of life, if etcd answers within 300 ms; an Acquire that still
// runs withdraws its own meanwhile. Leases stay: they are for the next run. Watches must have
// been ended through their contexts before. It ends connections whose local address this host no
// longer has, which would only time out, and those of a Store from Open.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.etcd.conns.closeStale(s.log)
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	waited := s.claims.lock(ctx) == nil
	s.unclaim(ctx)
	if waited {
		s.claims.unlock()
	}
	cancel()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	if s.alone {
		return s.etcd.Close()
	}
	return nil
}

func (s *Store) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

var errClosed = errors.New("etcd store is closed")

// connect returns the client.
func (s *Store) connect(ctx context.Context) (*clientv3.Client, error) {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return nil, errClosed
	}
	return s.etcd.connect(ctx)
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

// Init writes the network config if it is missing. It reports whether it did.
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
