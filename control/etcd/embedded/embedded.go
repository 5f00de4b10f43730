// Package embedded runs a single etcd server, so that one host can start an overlay
// cluster with nothing else installed. Other hosts join by naming its listen URL as
// their etcd endpoint. The daemon runs it in a process of its own, because a full disk
// or damaged data make etcd panic, also in its own goroutines.
//
// The server is etcd's own (go.etcd.io/etcd/server/v3), of the same minor
// version as the client. It exposes one listener for clients and none for
// peers: it is a cluster of one, and stays one.
//
// With an https URL clients need a certificate (Config.TLS); clients without one get no answer. With http
// they are not authenticated, but at a loopback address those of root and of the user of this process alone are let in. With Config.Prefix they can do only what a control.Store needs
// (guard.go), and the size of what they read is bounded (answers.go). HTTP has only /health and /version, because etcd's other pages
// show the command line, which may hold a password. A stranger's connections take no room from those of others (front.go, crowd.go).
package embedded

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"google.golang.org/grpc"
)

// DefaultListenClient is where the server listens unless told otherwise:
// this host only.
const DefaultListenClient = "http://127.0.0.1:2379"

const (
	startTimeout = 20 * time.Second // a large write-ahead log is replayed first
	lookPeriod   = 2 * time.Second  // an election takes a tenth of that
	stopTimeout  = 900 * time.Millisecond
)

// Config says where the server keeps its data and where it listens.
type Config struct {
	Dir          string       // data directory; made if missing (mode 0700)
	ListenClient string       // URL: http://<ip>:<port>, https://<ip>:<port> or unix://<path>; "": DefaultListenClient
	Prefix       string       // clients may use the keys below Prefix/ alone, and no RPC that concerns more; "": everything
	Name         string       // of the member, in etcd's own logs; "": "overlayd"
	Log          *slog.Logger // nil: its lines are discarded
	// TLS returns the config for one handshake, the same one as long as nothing has changed: for an https URL. It wants
	// certificates of clients, and its ClientCAs have signed them.
	TLS func() (*tls.Config, error)
	// Waits is asked when another process has the TCP port, as err says. If it returns true, the server serves at its Socket alone
	// until the port is free, and then calls Opened. nil: it never waits, and Start fails.
	Waits  func(err error) bool
	Opened func()

	NoFsync      bool          // trade the data of a power failure for speed; for tests
	LockPatience time.Duration // how long to wait for another process to leave Dir, such as one that is about to end

	greeting, recheck           time.Duration // of front; 0: its own
	takePatience                time.Duration // of answers; 0: its own
	startTimeout, lookPeriod    time.Duration // of await; 0: its own
	maxUsed, maxLeases, maxKeys int64         // of space; 0: its own
	spacePeriod                 time.Duration // likewise

	// Fatal is called when etcd cannot go on, perhaps while Start runs, and must not return. nil: panic.
	Fatal func(error)
}

// Server is a running etcd server.
type Server struct {
	etcd  *embed.Etcd
	front *front // nil: it listens on a Unix socket of the caller's choice
	dir   *os.File
	grpc  chan *grpc.Server
	guard *guard // nil: clients may do everything
	conns *connTracker
	lock  *os.File
	urls  []string

	tidying     sync.WaitGroup // space.run, and the last look of await
	stopTidying func()         // nil: it does not run

	stopOnce sync.Once
	stopErr  error
}

// Start starts the server and waits until it serves clients. Data of an
// earlier run in cfg.Dir is taken up again, even when it listened elsewhere.
// The errors name the field of cfg and its value. The caller must Stop it.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.ListenClient == "" {
		cfg.ListenClient = DefaultListenClient
	}
	if cfg.Name == "" {
		cfg.Name = "overlayd"
	}
	listen, err := parseListen(cfg.ListenClient)
	if err != nil {
		return nil, err
	}
	advertise, err := advertised(listen)
	if err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if !isLocal(listen) && listen.Scheme != "https" {
		cfg.Log.Warn("anyone who reaches the embedded etcd can change the overlay: let only its hosts reach it", "listen", cfg.ListenClient)
	}
	if listen.Scheme == "https" && cfg.TLS == nil {
		return nil, fmt.Errorf("listen address %q: there are no certificates for it", cfg.ListenClient)
	}
	lock, err := lockDir(ctx, cfg.Dir, cfg.LockPatience)
	if err != nil {
		return nil, err
	}
	if err = checkDatabase(cfg.Dir); err == nil {
		err = makeRoom(cfg.Dir, cfg.Log)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	s := &Server{conns: newConnTracker(), lock: lock, urls: texts(advertise), grpc: make(chan *grpc.Server, 1)}
	if cfg.Prefix != "" {
		s.guard = newGuard(cfg.Prefix)
		s.guard.answers = newAnswers(cmp.Or(cfg.takePatience, takePatience), s.conns.find)
		s.conns.ended = s.guard.answers.sources.forget
	}
	if err := s.start(ctx, cfg, listen, advertise); err != nil {
		return nil, errors.Join(err, s.closeFront(), lock.Close())
	}
	return s, nil
}

// Socket returns the path of a Unix socket in the data directory dir, at which the server answers too if it listens on
// TCP. Only the owner of the directory reaches it, so that it needs no certificate.
func Socket(dir string) string { return filepath.Join(dir, socketName) }

const socketName = "client.sock"

// listen makes the front, and returns where etcd itself is to listen: behind it, in the data directory.
func (s *Server) listen(cfg Config, listen url.URL) (behind url.URL, err error) {
	if listen.Scheme == "unix" {
		return listen, nil
	}
	if s.dir, err = os.Open(cfg.Dir); err != nil {
		return listen, fmt.Errorf("data directory %q: %w", cfg.Dir, err)
	}
	var secure func() (*tls.Config, error)
	if listen.Scheme == "https" {
		secure = cfg.TLS
	}
	if s.front, err = openFront(cfg, listen.Host, secure); err != nil {
		return listen, explain(err, cfg)
	}
	s.front.own = secure == nil && isLocal(listen)
	if s.guard != nil {
		s.guard.answers.sources.refuse = s.front.refuse
		if secure != nil {
			s.guard.answers.sources.max = trustedUnits
		}
	}
	// A path of the directory itself may be longer than the address of a socket (108 bytes).
	return url.URL{Scheme: "unix", Path: Socket(fmt.Sprintf("/proc/self/fd/%d", s.dir.Fd()))}, nil
}

// closeFront ends the front, if there is one.
func (s *Server) closeFront() error {
	if s.front != nil {
		s.front.close()
	}
	if s.dir == nil {
		return nil
	}
	return s.dir.Close()
}

func (s *Server) start(ctx context.Context, cfg Config, listen url.URL, advertise []url.URL) error {
	behind, err := s.listen(cfg, listen)
	if err != nil {
		return err
	}
	e, err := startEtcd(s.config(cfg, behind, advertise))
	if err != nil {
		return explain(err, cfg)
	}
	s.etcd = e
	if s.front != nil {
		if err := os.Chmod(Socket(cfg.Dir), 0o600); err != nil {
			s.stopEtcd()
			return fmt.Errorf("data directory %q: %w", cfg.Dir, err)
		}
	}
	if err = s.await(ctx, cfg); err == nil {
		return nil
	}
	s.stopEtcd()
	return fmt.Errorf("start etcd server in data directory %q: %w", cfg.Dir, err)
}

// await lets clients in once etcd is ready.
func (s *Server) await(ctx context.Context, cfg Config) error {
	patience := cmp.Or(cfg.startTimeout, startTimeout)
	timeout, look := time.NewTimer(patience), time.NewTicker(cmp.Or(cfg.lookPeriod, lookPeriod))
	defer timeout.Stop()
	defer look.Stop()
	looked, looking := make(chan error, 1), false
	for {
		select {
		case g := <-s.grpc: // it is ready then
			s.serve(cfg, g)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout.C:
			select {
			case g := <-s.grpc: // all of this process was held up
				s.serve(cfg, g)
				return nil
			default:
				return fmt.Errorf("not ready after %s", patience)
			}
		case err := <-s.etcd.Err():
			return err
		case err := <-looked:
			if looking = false; err != nil {
				return err
			}
		case <-look.C:
			if !looking { // the database may hang, as on a disk that does not answer
				looking = true
				s.tidying.Go(func() { looked <- lostEnd(s.etcd.Server) })
			}
		}
	}
}

// lostEnd returns an error if the log has lost its end: etcd takes what it writes next for what its database has already, and is never ready. A leader
// has committed all that the log has.
func lostEnd(s *etcdserver.EtcdServer) error {
	has, _ := schema.ReadConsistentIndex(s.Backend().ReadTx())
	if log := s.CommittedIndex(); s.Leader() != 0 && log < has {
		return fmt.Errorf("%w: the log ends at entry %d, the database has %d", ErrDamaged, log, has)
	}
	return nil
}

// serve lets clients in.
func (s *Server) serve(cfg Config, g *grpc.Server) {
	if s.guard != nil {
		r := newSpace(cfg, s.etcd.Server, &s.guard.answers.sources)
		ctx, stop := context.WithCancel(context.Background())
		r.countLeases(ctx)
		r.countKeys(ctx)
		s.guard.space.Store(r)
		s.tidying.Go(func() { r.run(ctx) })
		s.stopTidying = stop
	}
	if s.front == nil {
		return
	}
	mux := http.NewServeMux()
	etcdhttp.HandleHealth(s.etcd.GetLogger(), mux, s.etcd.Server)
	etcdhttp.HandleVersion(mux, s.etcd.Server)
	s.front.serve(g, mux)
}

// startEtcd turns a panic, which is etcd's answer to damaged data, into an error.
func startEtcd(cfg *embed.Config) (e *embed.Etcd, err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case error:
			err = p
		default:
			err = fmt.Errorf("etcd cannot use what is there: %v", p)
		}
	}()
	return embed.StartEtcd(cfg)
}

// URLs returns the URLs that clients reach the server at. A server that listens
// on all addresses has one for each address of the host.
func (s *Server) URLs() []string { return append([]string(nil), s.urls...) }

// Refused returns how many connections were refused so far.
func (s *Server) Refused() uint64 {
	if s.front == nil {
		return 0
	}
	s.front.mu.Lock()
	defer s.front.mu.Unlock()
	return s.front.refused
}

// Err is sent an error when the server stops serving by itself. It is closed
// after Stop.
func (s *Server) Err() <-chan error { return s.etcd.Err() }

// Stop ends the server within a second and returns once its data is safe on
// disk. It does not wait for clients: their calls and watches end in an error
// that they retry. Only the first call does anything.
func (s *Server) Stop() error {
	s.stopOnce.Do(func() {
		if !s.stopEtcd() {
			// The lock is left to the process: the data may still be written to.
			s.stopErr = fmt.Errorf("stop etcd server: not done after %s", stopTimeout)
			return
		}
		s.stopErr = errors.Join(s.closeFront(), s.lock.Close())
	})
	return s.stopErr
}

// stopEtcd closes every connection before the server: etcd's own Close waits
// for open watches to end, which they never do by themselves.
func (s *Server) stopEtcd() bool {
	if s.front != nil {
		s.front.close()
	}
	s.conns.closeAll()
	if s.stopTidying != nil {
		s.stopTidying()
		s.guard.space.Load().history.close()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.tidying.Wait()
		s.etcd.Close()
	}()
	timeout := time.NewTimer(stopTimeout)
	defer timeout.Stop()
	select {
	case <-done:
		return true
	case <-timeout.C:
		return false
	}
}
