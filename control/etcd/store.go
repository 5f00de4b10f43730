package etcd

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdkeys"
	"github.com/overlayd/overlayd/control/etcdrpc"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// leaseID is the id of an etcd lease: the Handle of a lease.
type leaseID = etcdrpc.LeaseID

// Store is control.Store on etcd. Its methods may be called from several goroutines.
type Store struct {
	etcd  *Client
	rpc   *etcdrpc.Caller
	alone bool // nobody else uses etcd: it is closed with the Store
	cfg   Config
	keys  etcdkeys.Keys
	log   *slog.Logger

	claims *semaphore.Weighted // of whoever makes this node's record, or withdraws it for good

	mu      sync.Mutex  // of the fields below
	closing bool        // Close has begun: no new record
	node    *nodeRecord // nil before Acquire and after Release
	// bequeathed says that another process goes on with the record and the lease: see Bequeath.
	bequeathed bool
	notices    pace.Notices
	early      map[string]*mvccpb.KeyValue // what the watch has shown of the nodes' records; nil once there was a record of this one
	// questions has what other hosts with this node's ID were asked, by the keys of their records.
	questions map[string]question
	lengths   *control.Lengths         // of the node's Acquire
	inForce   control.Network          // of the node's Acquire
	held      control.Lease            // the lease of this node, as the store last answered
	ghosts    map[string]ghost         // in the place of held, by key, since that answer
	beats     map[string]beat          // of the records of others, by key, since that answer
	wentBack  int64                    // see noteWentBack; 0: not since held was set
	listed    []control.Lease          // all entries as the watch showed them before there was held; see noteOwn
	own       map[string]control.Lease // entries of this node's address beside held, by key; see noteOwn
	ownSince  time.Time                // when they were first noted

	clones cloneList
	looks  *rate.Limiter // of what clones may have written, in bytes
	control.StoreHealth
}

var (
	_ control.Store          = (*Store)(nil)
	_ control.ConfigWatcher  = (*Store)(nil)
	_ control.ConfigWriter   = (*Store)(nil)
	_ control.Publisher      = (*Store)(nil)
	_ control.LiveNodeFinder = (*Store)(nil)
	_ control.Bequeather     = (*Store)(nil)
	_ control.StoreReporter  = (*Store)(nil)
	_ control.RemoteLister   = (*Store)(nil)

	_ control.CertificateReader = (*Store)(nil)

	_ io.Closer = (*Store)(nil)
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
	s.etcd.rpc.CloseStale(s.log)
	ctx, cancel := context.WithTimeout(context.Background(), etcdrpc.CloseTimeout)
	waited := s.claims.Acquire(ctx, 1) == nil
	s.dropQuestions(ctx)
	s.unclaim(ctx)
	if waited {
		s.claims.Release(1)
	}
	cancel()
	s.rpc.Close()
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

// Network implements control.Store.
func (s *Store) Network(ctx context.Context) (control.Network, error) {
	got, err := s.rpc.Get(ctx, "read network config", s.keys.Config())
	if err != nil {
		return control.Network{}, err
	}
	return s.parseNetwork(got.Kvs)
}

// networkInForce returns the config in which this node has its lease: that in etcd may be another one by now, which is held or refused. Of a
// node without a config of its own it reads etcd's.
func (s *Store) networkInForce(ctx context.Context) (control.Network, error) {
	s.mu.Lock()
	n := s.inForce
	s.mu.Unlock()
	if n != (control.Network{}) {
		return n, nil
	}
	return s.Network(ctx)
}

func (s *Store) parseNetwork(kvs []*mvccpb.KeyValue) (control.Network, error) {
	if len(kvs) == 0 {
		return control.Network{}, fmt.Errorf("%w: etcd at %s has no key %s", control.ErrNoNetwork, s.rpc.Endpoints(), s.keys.Config())
	}
	n, err := control.ParseNetwork(kvs[0].Value)
	if err != nil {
		return control.Network{}, fmt.Errorf("key %s: %w", s.keys.Config(), err)
	}
	return n, nil
}

// Init writes the network config if it is missing. It reports whether it did.
// A config that is not valid is a *control.NetworkError and is not written.
func (s *Store) Init(ctx context.Context, config []byte) (created bool, err error) {
	if _, err := control.ParseNetwork(config); err != nil {
		return false, err
	}
	key := s.keys.Config()
	absent := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	resp, err := s.rpc.Txn(ctx, "write network config", []clientv3.Cmp{absent}, []clientv3.Op{clientv3.OpPut(key, string(config))}, nil)
	if err != nil {
		return false, err
	}
	return resp.Succeeded, nil
}

// logRefusal says that etcd does not write, once in a while.
func (s *Store) logRefusal(ctx context.Context, text string, err error) {
	if s.due(pace.Notice{Key: text, Text: err.Error()}) {
		s.log.WarnContext(ctx, text, "err", err, "fix", etcdrpc.FixOfRefusal(err))
	}
}

// due reports whether a fault is to be logged now.
func (s *Store) due(n pace.Notice) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	due, _ := s.notices.Due(time.Now(), n)
	return len(due) > 0
}

// Status implements control.StoreReporter.
func (s *Store) Status() control.StoreStatus {
	st := s.StoreHealth.Status()
	st.Clones, st.Unused = s.clones.list(), s.rpc.Unused()
	return st
}
