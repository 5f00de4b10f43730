package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/subnetfile"
)

// serveNetworks serves the networks that have names, as they come and go, until ctx ends or the
// daemon has drained. If one of them fails, that is logged and tried again, and never touches
// another.
func (d *Daemon) serveNetworks(ctx context.Context) error {
	list, err := d.cfg.OpenNetworks(ctx)
	if err != nil {
		return err
	}
	defer list.Close()
	s := serving{daemon: d, running: map[string]*runningNetwork{}}
	process, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	defer context.AfterFunc(ctx, func() {
		d.ports.Still() // before the first network goes: what comes for it is for the next daemon
		end(context.Cause(ctx))
	})()
	defer s.group.Wait() // the networks end with process, or once they have drained
	inner, cancel := context.WithCancel(ctx)
	names := list.Networks(inner)
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
			wanted := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !d.cfg.concerns(name) })
			s.update(process, wanted)
			if d.expects.complete(); len(wanted) == 0 {
				d.manager.tell(sd.SdNotifyReady) // there is nothing to wait for
			}
		}
	}
}

// serving holds the networks that a daemon serves at present. Its methods are called from one goroutine.
type serving struct {
	daemon  *Daemon
	running map[string]*runningNetwork
	listed  bool // update was called
	group   sync.WaitGroup
}

type runningNetwork struct {
	stop context.CancelFunc // tells it that the network has gone
	done chan struct{}      // closed when it is no longer served
	gone bool               // stop was called
}

// hasEnded reports whether the network is no longer served.
func (r *runningNetwork) hasEnded() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// update serves exactly the networks with these names.
func (s *serving) update(ctx context.Context, names []string) {
	wanted := make(map[string]struct{}, len(names))
	for _, name := range names {
		wanted[name] = struct{}{}
	}
	for name, r := range s.running {
		if _, ok := wanted[name]; !ok && !r.gone {
			s.daemon.cfg.StoreLog.Of(s.daemon.cfg.Log).Info("network has gone", "network", name)
			r.stop()
			r.gone = true
		}
		if r.gone && r.hasEnded() {
			delete(s.running, name)
		}
	}
	var begin []func()
	for _, name := range names {
		before := s.running[name]
		if before != nil && !before.gone {
			continue
		}
		inner, stop := context.WithCancel(ctx)
		r := &runningNetwork{stop: stop, done: make(chan struct{})}
		s.running[name] = r
		n := s.daemon.newNetwork(name) // now: whoever asks meanwhile is told that it is not ready
		n.late = s.listed
		begin = append(begin, func() {
			defer close(r.done)
			defer stop()
			if before != nil {
				<-before.done
				if inner.Err() != nil { // nothing was made for it
					s.daemon.expects.skip(n)
					return
				}
			}
			n.serveWhileWanted(inner, ctx)
		})
	}
	s.listed = true
	for _, f := range begin { // when all are expected: a new network yields to one that this host has served
		s.group.Go(f)
	}
}

// serveWhileWanted serves a network until ctx ends or the daemon has drained. If ctx ends before
// process does, the network has gone: then everything that was made for it is removed.
func (n *Network) serveWhileWanted(ctx, process context.Context) {
	n.daemon.expects.begin(n)
	defer n.daemon.expects.remove(n)
	// The device stays claimed between two tries: the other networks may need it gone to come up.
	defer n.releaseDevice()
	defer func() {
		if process.Err() != nil && context.Cause(process) != errReplaced {
			n.stopped()
		}
	}()
	again, log := pace.Backoff{Low: 500 * time.Millisecond, High: 30 * time.Second}, n.cfg.StoreLog.Of(n.log)
	for {
		err := n.claim()
		if err == nil {
			stop := n.daemon.serveHandover(n)
			err = n.serve(ctx)
			stop()
			if process.Err() == nil && ctx.Err() != nil {
				n.remove(process)
			}
			n.file.Release()
		}
		if ctx.Err() != nil || n.daemon.draining() {
			if err != nil {
				n.log.Error("lease of the network not given back", n.attrs(err)...)
			}
			return
		}
		pause := again.Next()
		if len(n.news(pace.Notice{Key: "serve", Text: err.Error()})) > 0 {
			log.Error("cannot serve network: trying again", append(n.attrs(err), "after", pause)...)
		}
		if pace.Sleep(ctx, pause, n.daemon.drain) {
			continue
		}
		if ctx.Err() == nil { // it is to drain
			if err := n.giveBackOnce(ctx); err != nil {
				n.log.Error("lease of the network not given back", n.attrs(err)...)
			}
		}
		return
	}
}

// remove removes what the network has left on this host. Its lease stays until it expires: a
// network that comes back has the same subnet.
func (n *Network) remove(ctx context.Context) {
	n.takeBack()
	n.earlier.stay(n.removeLeft(ctx, n.left), nil)
	n.releaseDevice() // retireGuards claims it
	n.retireGuards()
	n.remember(nodefile.Left{})
	_ = n.file.UseConfig("") // settleFile tries again, and warns
	for _, file := range [...]string{n.subnetFile, controller.LeasesFile(n.subnetFile)} {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			n.log.Error("cannot remove a file of the network", "err", err)
		}
	}
	if n.daemon.expects.forgets(n.name) && n.file.IsClaimed() && len(n.earlier.with(nil)) == 0 {
		if err := n.file.Remove(); err != nil {
			n.log.Error("cannot remove a file of the network", "err", err)
		}
	}
}

// yieldToServed returns why a network that this host has not served yet is not served: another one, which this host has served,
// wants the same addresses. After a restart the first of both to come would have them.
func (n *Network) yieldToServed(c control.Network) error {
	if _, err := os.Stat(n.subnetFile); err == nil || !n.cfg.several() {
		return nil
	}
	for _, other := range n.daemon.expects.all() {
		f, err := subnetfile.Load(other.subnetFile)
		if err != nil || other == n {
			continue
		}
		for _, p := range c.Prefixes() {
			for _, q := range f.Networks() {
				if p.Overlaps(q) {
					return carryError{fmt.Errorf("network config: %s overlaps %s of network %s, which this host has served before: want another", p, q, other.name)}
				}
			}
		}
	}
	return nil
}
