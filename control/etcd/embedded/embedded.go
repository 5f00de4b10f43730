// Package embedded runs a single etcd server, so that one host can start an overlay
// cluster with nothing else installed. Other hosts join by naming its listen URL as
// their etcd endpoint. The daemon runs it in a process of its own: a disk that is full
// or data that are damaged make etcd panic, also in goroutines of its own.
//
// The server is etcd's own (go.etcd.io/etcd/server/v3), of the same minor
// version as the client. It exposes one listener for clients and none for
// peers: it is a cluster of one, and stays one.
//
// Clients are not authenticated. With Config.Prefix they can do what a control.Store needs and
// nothing else (guard.go), and the listener answers no request for what the process is made of:
// its command line may hold a password.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// DefaultListenClient is where the server listens unless told otherwise:
// this host only.
const DefaultListenClient = "http://127.0.0.1:2379"

const (
	startTimeout = 20 * time.Second // a large write-ahead log is replayed first
	stopTimeout  = 900 * time.Millisecond
)

// Config says where the server keeps its data and where it listens.
type Config struct {
	Dir          string        // data directory; made if missing (mode 0700)
	ListenClient string        // URL: http://<ip>:<port> or unix://<path>; "": DefaultListenClient
	Prefix       string        // clients may use the keys below Prefix/ alone, and no RPC that concerns more; "": everything
	Name         string        // of the member, in etcd's own logs; "": "overlayd"
	Log          *slog.Logger  // nil: etcd's errors are discarded
	NoFsync      bool          // trade the data of a power failure for speed; for tests
	LockPatience time.Duration // how long to wait for another process to leave Dir, such as one that is about to end
	// Fatal is called when etcd cannot go on, perhaps while Start runs, and must not return. nil: panic.
	Fatal func(error)
}

// Server is a running etcd server.
type Server struct {
	etcd  *embed.Etcd
	conns *connTracker
	lock  *os.File
	urls  []string

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
	if cfg.Log != nil && !isLocal(listen) {
		cfg.Log.Warn("anyone who reaches the embedded etcd can change the overlay: let only its hosts reach it", "listen", cfg.ListenClient)
	}
	lock, err := lockDir(ctx, cfg.Dir, cfg.LockPatience)
	if err != nil {
		return nil, err
	}
	if err := tryDisk(cfg.Dir); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	s := &Server{conns: newConnTracker(), lock: lock, urls: texts(advertise)}
	if err = checkDatabase(cfg.Dir); err == nil {
		err = s.start(ctx, cfg, listen, advertise)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return s, nil
}

func (s *Server) start(ctx context.Context, cfg Config, listen url.URL, advertise []url.URL) error {
	e, err := startEtcd(serverConfig(cfg, listen, advertise, s.conns))
	if err != nil {
		return explain(err, cfg)
	}
	s.etcd = e
	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	select {
	case <-e.Server.ReadyNotify():
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-timeout.C:
		err = fmt.Errorf("not ready after %s", startTimeout)
	case err = <-e.Err():
	}
	s.stopEtcd()
	return fmt.Errorf("start etcd server in data directory %q: %w", cfg.Dir, err)
}

// startEtcd turns a panic, which is etcd's answer to damaged data, into an error.
func startEtcd(cfg *embed.Config) (e *embed.Etcd, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: etcd cannot use what is in data directory %q: %v", ErrDamaged, cfg.Dir, p)
		}
	}()
	return embed.StartEtcd(cfg)
}

// URLs returns the URLs that clients reach the server at. A server that listens
// on all addresses has one for each address of the host.
func (s *Server) URLs() []string { return append([]string(nil), s.urls...) }

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
		s.stopErr = s.lock.Close()
	})
	return s.stopErr
}

// stopEtcd closes every connection before the server: etcd's own Close waits
// for open watches to end, which they never do by themselves.
func (s *Server) stopEtcd() bool {
	s.conns.closeAll()
	done := make(chan struct{})
	go func() {
		defer close(done)
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
