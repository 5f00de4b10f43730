package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/child"
	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/pki"
	"github.com/overlayd/overlayd/cmd/internal/rights"
	"github.com/overlayd/overlayd/control/etcd/embedded"
)

// Why the embedded etcd does not run: what fixOfEtcd tells by.
const (
	etcdFull     = "disk_full"
	etcdReadOnly = "disk_read_only"
	etcdDenied   = "denied"
	etcdInUse    = "in_use"
	etcdListen   = "listen"
	etcdDamaged  = "damaged"
	etcdMembers  = "members"
	etcdAside    = "aside_before"
	etcdPKI      = "certificates"
)

const (
	// etcdPatience bounds how long the daemon waits for its etcd before it goes on without.
	etcdPatience = 5 * time.Second
	// etcdCrashes in a row, and the data are taken for damaged.
	etcdCrashes = 3
	// etcdLockPatience is longer than an etcd takes to end whose daemon was killed.
	etcdLockPatience = 3 * time.Second
)

// startEtcd starts the embedded etcd as a process of its own, `overlayd etcd`.
func startEtcd(ctx context.Context, o *flags.Flags, log *slog.Logger) *child.Process {
	p := child.Start(child.Config{
		Name: "embedded etcd",
		Args: func(last *child.Error, times int) []string {
			return etcdArgs(&o.Etcd, log.Enabled(ctx, slog.LevelDebug), o.Etcd.Rebuild && isDamaged(last, times))
		},
		Log: log,
		Fix: func(err error) string { return fixOf(o, "", err) },
	})
	select {
	case <-p.First():
	case <-ctx.Done():
	case <-time.After(etcdPatience):
	}
	return p
}

// etcdArgs are the arguments of the process. Clients may change only what is below the prefix.
func etcdArgs(o *flags.Etcd, debug, setAside bool) []string {
	return []string{"etcd", "--dir=" + o.DataDir, "--listen=" + o.ListenURL, "--prefix=" + o.Prefix, "--pki-dir=" + o.PKIDir,
		"--debug=" + strconv.FormatBool(debug), "--set-aside=" + strconv.FormatBool(setAside)}
}

// isDamaged reports whether etcd cannot use its data: it says so, or ends again and again in a panic that has
// nothing to do with the disk.
func isDamaged(last *child.Error, times int) bool {
	return last != nil && (last.Reason == etcdDamaged || last.Reason == child.ReasonCrash && times >= etcdCrashes)
}

// newEtcdCommand makes `overlayd etcd`, which only the daemon runs.
func newEtcdCommand() *cobra.Command {
	var cfg embedded.Config
	var dir string
	var debug, setAside bool
	cmd := &cobra.Command{
		Use:    "etcd",
		Short:  "Run the embedded etcd of a daemon, and end with it",
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := child.Serve(cmd.Context(), debug, func(ctx context.Context, p *child.Parent) error {
				unix.Umask(0o077) // its socket is there before it can have another mode
				keep := forDirs(p.Log, filepath.Dir(cfg.Dir), cfg.Dir)
				if isPrivileged(cfg.ListenClient) {
					keep |= rights.NetBindService
				}
				keepRights(p.Log, keep)
				return serveEtcd(ctx, p, cfg, pki.Dir(dir), setAside)
			})
			if errors.Is(err, child.ErrNoParent) {
				return usageError{err}
			}
			return err
		},
	}
	cmd.Flags().StringVar(&cfg.Dir, "dir", "", "data directory")
	cmd.Flags().StringVar(&cfg.ListenClient, "listen", "", "URL on which to listen")
	cmd.Flags().StringVar(&cfg.Prefix, "prefix", "", "prefix of the keys that clients may use")
	cmd.Flags().StringVar(&dir, "pki-dir", "", "directory of the authority, for https")
	cmd.Flags().BoolVar(&debug, "debug", false, "log debug messages")
	cmd.Flags().BoolVar(&setAside, "set-aside", false, "move the data aside, which are damaged")
	return cmd
}

// serveEtcd runs etcd until ctx ends, or etcd cannot go on.
func serveEtcd(ctx context.Context, p *child.Parent, cfg embedded.Config, dir pki.Dir, setAside bool) error {
	var ready atomic.Bool
	cfg.Log, cfg.LockPatience = p.Log, etcdLockPatience
	cfg.Fatal = func(err error) { // in a goroutine of etcd, which must not go on
		p.Failed(etcdError(err, ready.Load()))
		os.Exit(exitFailure)
	}
	if setAside {
		aside, err := embedded.SetAside(ctx, cfg.Dir, cfg.LockPatience)
		if err != nil {
			p.Failed(etcdError(err, true))
			return err
		}
		p.Log.Warn("embedded etcd starts with no data: the damaged ones are kept aside. Every node puts its lease back, and reservations have to be made again", "aside", aside)
	}
	if strings.HasPrefix(cfg.ListenClient, "https://") {
		s, err := pki.OpenServer(dir, p.Log)
		if err != nil {
			p.Failed(&child.Error{Reason: etcdPKI, Text: err.Error()})
			return err
		}
		cfg.TLS = s.Config
	}
	s, err := embedded.Start(ctx, cfg)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		p.Failed(etcdError(err, true))
		return err
	}
	ready.Store(true)
	p.Ready()
	for tick, told := time.NewTicker(time.Second), uint64(0); ; {
		select {
		case <-ctx.Done():
			return s.Stop()
		case err = <-s.Err():
			p.Failed(etcdError(err, true))
			return errors.Join(err, s.Stop())
		case <-tick.C:
			if n := s.Refused(); n != told {
				told = n
				p.Refused(n)
			}
		}
	}
}

// etcdError returns the reason of an error of etcd. What etcd cannot use before it is ready is damaged,
// unless the kernel refused something.
func etcdError(err error, ready bool) *child.Error {
	e := &child.Error{Text: err.Error()}
	for _, r := range []struct {
		is     error
		reason string
	}{
		{unix.ENOSPC, etcdFull}, {unix.EDQUOT, etcdFull}, {unix.EROFS, etcdReadOnly}, {unix.EACCES, etcdDenied}, {unix.EPERM, etcdDenied},
		{embedded.ErrInUse, etcdInUse}, {embedded.ErrListen, etcdListen},
		{embedded.ErrMembers, etcdMembers}, {embedded.ErrAsideBefore, etcdAside}, {embedded.ErrDamaged, etcdDamaged},
	} {
		if errors.Is(err, r.is) {
			e.Reason = r.reason
			return e
		}
	}
	if !ready && !errors.As(err, new(unix.Errno)) {
		e.Reason = etcdDamaged
	}
	return e
}
