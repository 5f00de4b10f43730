package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/overlayd/overlayd/control/etcd"
)

// serveNetworks serves the networks that have names, those of --networks or as they come and
// go below the prefix, until ctx ends or the daemon has drained. What fails of one network is
// logged and tried again, and never touches another.
func (d *daemon) serveNetworks(ctx context.Context) error {
	root, err := etcd.Open(ctx, d.etcdConfig("", d.log))
	if err != nil {
		return usagef("etcd: %w", err)
	}
	defer root.Close()
	s := served{daemon: d, running: map[string]runningNetwork{}}
	defer s.group.Wait() // the networks end with ctx, or as drained
	if !d.watchNetworks {
		s.follow(ctx, d.networks)
		d.health.forget(unknown)
		return nil
	}
	inner, cancel := context.WithCancel(ctx)
	names := root.Networks(inner)
	defer func() {
		cancel()
		for range names { // until it is closed
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.drain:
			return nil
		case all, ok := <-names:
			if !ok {
				return nil
			}
			wanted := d.ofInterest(all)
			s.follow(ctx, wanted)
			if d.health.forget(unknown); len(wanted) == 0 {
				sd.SdNotify(false, sd.SdNotifyReady) // there is nothing to wait for
			}
		}
	}
}

// ofInterest leaves out what --networks does not have, if that is given.
func (d *daemon) ofInterest(names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		return len(d.networks) > 0 && !slices.Contains(d.networks, name)
	})
}

// served are the networks of a daemon. Its methods are called from one goroutine.
type served struct {
	*daemon
	running map[string]runningNetwork
	group   sync.WaitGroup
}

type runningNetwork struct {
	stop context.CancelFunc // says that the network has gone
	done chan struct{}      // closed when it is not served any more
	gone bool               // stop was called
}

// follow makes the networks that are served those with these names.
func (s *served) follow(ctx context.Context, names []string) {
	for name, r := range s.running {
		if !slices.Contains(names, name) && !r.gone {
			s.log.Info("network has gone", "network", name)
			r.stop()
			r.gone = true
			s.running[name] = r
		}
	}
	for _, name := range names {
		before, ok := s.running[name]
		if ok && !before.gone {
			continue
		}
		inner, stop := context.WithCancel(ctx)
		r := runningNetwork{stop: stop, done: make(chan struct{})}
		s.running[name] = r
		s.health.expect(name) // now: who asks meanwhile is told that it is not ready
		s.group.Go(func() {
			defer close(r.done)
			defer stop()
			if ok {
				<-before.done
			}
			s.serveNetwork(inner, ctx, name)
		})
	}
}

// serveNetwork serves a network until ctx ends or the daemon has drained. If ctx ends before process, the
// network has gone: then all that was made for it is removed.
func (s *served) serveNetwork(ctx, process context.Context, name string) {
	n := s.newNetwork(name)
	defer s.health.forget(name)
	const minPause, maxPause = 500 * time.Millisecond, 30 * time.Second
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		err := n.claim()
		if err == nil {
			err = n.serve(ctx)
			if process.Err() == nil && ctx.Err() != nil {
				n.remove(process)
			}
			n.release()
		}
		if ctx.Err() != nil || n.draining() {
			if err != nil {
				n.log.Error("network not given back", "err", err)
			}
			return
		}
		n.log.Error("network is not served: trying again", "err", err, "after", pause)
		select {
		case <-ctx.Done():
			return
		case <-n.drain:
			return
		case <-time.After(pause):
		}
	}
}

// remove removes what the network has left on this host. Its lease stays until it expires: a
// network that comes back has the same subnet.
func (n *network) remove(ctx context.Context) {
	n.removeLast(ctx)
	n.setLast(traces{})
	if err := os.Remove(n.subnetFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		n.log.Error("subnet file is left", "err", err)
	}
}
