package etcd

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdkeys"
	"github.com/overlayd/overlayd/control/etcdrpc"
)

// Client is one connection to etcd, shared by the Stores of all networks of a process. Its
// methods may be called from several goroutines. Close it after its Stores.
type Client struct {
	cfg Config // Prefix is that of all networks
	rpc *etcdrpc.Client
}

// OpenClient checks cfg and returns a Client. It reaches no server: the first call of a Store
// does, and every later one may, so an etcd that is down is not an error here. An error names
// the setting and its value. ctx bounds OpenClient alone.
func OpenClient(ctx context.Context, cfg Config) (*Client, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c, err := etcdrpc.Open(ctx, cfg.connection())
	if err != nil {
		return nil, err
	}
	return &Client{cfg: cfg, rpc: c}, nil
}

// Store returns the Store of a network: with name "" the one whose keys are right below
// Config.Prefix, else the one of the older layout, Config.Prefix/<name>; see control.CheckNetworkName. A
// nil log is that of Config. Close of the Store leaves the connection to the other Stores.
func (c *Client) Store(name string, log *slog.Logger) *Store {
	prefix := c.cfg.Prefix
	if name != "" {
		prefix += "/" + name
	}
	if log == nil {
		log = c.cfg.Log
	}
	s := &Store{etcd: c, cfg: c.cfg, keys: etcdkeys.Keys{Prefix: prefix}, log: log, claims: semaphore.NewWeighted(1),
		early: map[string]*mvccpb.KeyValue{}, questions: map[string]question{}, looks: rate.NewLimiter(maxLooks, maxLooks),
		StoreHealth: control.StoreHealth{Kind: "etcd", Endpoint: strings.Join(c.cfg.Endpoints, ",")}}
	s.rpc = c.rpc.Caller(prefix, c.cfg.Relist, &s.StoreHealth, log)
	return s
}

// ReadCertificates implements control.CertificateReader, for all Stores of the Client.
func (s *Store) ReadCertificates() (control.CertificateState, error) {
	return s.etcd.rpc.ReadCertificates()
}

// Remotes implements control.RemoteLister.
func (s *Store) Remotes() []netip.Addr { return s.etcd.rpc.Remotes() }

// Close ends the connection. Every later call of a Store fails.
func (c *Client) Close() error { return c.rpc.Close() }
