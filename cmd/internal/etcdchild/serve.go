package etcdchild

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/child"
	"github.com/overlayd/overlayd/cmd/internal/pki"
	"github.com/overlayd/overlayd/cmd/internal/rights"
	"github.com/overlayd/overlayd/cmd/internal/tcpport"
	"github.com/overlayd/overlayd/control/etcd/embedded"
	"github.com/overlayd/overlayd/control/garbage"
)

// lockPatience is longer than an etcd takes to end whose daemon was killed.
const lockPatience = 3 * time.Second

// Config says what the process serves.
type Config struct {
	Etcd     embedded.Config // Dir, ListenClient and Prefix
	PKIDir   string          // directory of the authority, for https
	Debug    bool            // log debug messages
	SetAside bool            // move the data, which are damaged, aside
}

// Serve is the process: it ends when the daemon that started it does. child.ErrNoParent: no daemon has.
func Serve(ctx context.Context, c Config) error {
	return child.Serve(ctx, c.Debug, func(ctx context.Context, p *child.Parent) error {
		go garbage.Bound(ctx, embedded.Memory)
		unix.Umask(0o077) // its socket is there before it can have another mode
		keep := rights.ForDirs(p.Log, filepath.Dir(c.Etcd.Dir), c.Etcd.Dir)
		if rights.BindsPrivileged(c.Etcd.ListenClient) {
			keep |= rights.NetBindService
		}
		rights.GiveUp(p.Log, keep)
		return c.serve(ctx, p)
	})
}

// serve runs etcd until ctx ends, or etcd cannot go on.
func (c Config) serve(ctx context.Context, p *child.Parent) error {
	var ready atomic.Bool
	cfg := c.Etcd
	cfg.Log, cfg.LockPatience = p.Log, lockPatience
	cfg.Fatal = func(err error) { // in a goroutine of etcd, which must not go on
		p.Failed(asError(err, ready.Load()))
		os.Exit(1)
	}
	if c.SetAside {
		aside, err := embedded.SetAside(ctx, cfg.Dir, cfg.LockPatience)
		if err != nil {
			p.Failed(asError(err, true))
			return err
		}
		p.Log.Warn("embedded etcd starts with no data: the damaged ones are kept aside. Every node puts its lease back, and reservations have to be made again", "aside", aside)
	}
	if strings.HasPrefix(cfg.ListenClient, "https://") {
		s, err := pki.OpenServer(pki.Dir(c.PKIDir), p.Log)
		if err != nil {
			p.Failed(&child.Error{Reason: PKI, Text: err.Error()})
			return err
		}
		cfg.TLS = s.Config
	}
	if at := address(cfg.ListenClient); at != "" {
		cfg.Opened = p.Opened
		cfg.Waits = func(err error) bool {
			taken := new(tcpport.TakenError)
			if err = tcpport.Explain(at, err); !errors.As(err, &taken) || taken.IsOurs() {
				return false
			}
			p.Closed(&child.Error{Reason: Listen, Text: err.Error()})
			return true
		}
	}
	s, err := embedded.Start(ctx, cfg)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		p.Failed(asError(err, true))
		return err
	}
	ready.Store(true)
	p.Ready()
	return watch(ctx, p, s)
}

// address returns the TCP address of a URL; empty if it has none.
func address(listen string) string {
	u, err := url.Parse(listen)
	if err != nil || u.Scheme == "unix" {
		return ""
	}
	return u.Host
}

// watch tells the daemon how many requests are refused, until ctx ends or etcd cannot go on, or its data are gone.
func watch(ctx context.Context, p *child.Parent, s *embedded.Server) error {
	tick, told := time.NewTicker(time.Second), uint64(0)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return s.Stop()
		case err := <-s.Err():
			p.Failed(asError(err, true))
			return errors.Join(err, s.Stop())
		case <-tick.C:
			if err := s.Gone(); err != nil {
				p.Failed(asError(err, true))
				return err // without Stop, which might write into the directory that is there now
			}
			if n := s.Refused(); n != told {
				told = n
				p.Refused(n)
			}
		}
	}
}
