package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// network is one overlay network that the daemon serves: its store, its subnet file,
// and who this node is in it. A session comes and goes on top of it.
type network struct {
	*daemon
	name       string // below the prefix; "" where the daemon serves one network
	log        *slog.Logger
	subnetFile string
	node       control.Node
	file       *nodeFile // claim of subnetFile

	store    control.Store      // nil while it is closed
	iface    underlay.Interface // of the current session
	chosenBy underlay.Options   // what chose it
	last     traces             // of the last session, that of an earlier process too
	opened   bool               // a dataplane was open once: from now on nothing ends serve
	refused  refusal
}

// refusal is a network config that no dataplane here can carry, and why.
type refusal struct {
	network control.Network
	err     error
	at      time.Time
}

// refusalHolds is how long a refusal keeps a dataplane from being tried again: what was in the
// way, as a module that is not loaded, may have gone.
const refusalHolds = 30 * time.Second

// of says why there is no use in trying a config now.
func (r refusal) of(c control.Network) error {
	if c != r.network || time.Since(r.at) > refusalHolds {
		return nil
	}
	return r.err
}

func (d *daemon) newNetwork(name string) *network {
	n := &network{daemon: d, name: name, log: d.log, subnetFile: d.subnetFileOf(name)}
	if name != "" {
		n.log = d.log.With("network", name)
	}
	d.health.expect(n.name)
	return n
}

// claim makes the subnet file this process's, and learns the node's ID from the file beside it.
func (n *network) claim() (err error) {
	n.node = control.Node{ID: newNodeID(), Name: n.hostname}
	n.file, err = claimNode(n.subnetFile)
	switch other := new(runningError); {
	case errors.As(err, &other):
		return err
	case err != nil:
		n.log.Warn("no node file: drain and cleanup cannot see this daemon, and after a crash its address is free only when its record has expired", "err", err)
	default:
		n.node.ID, n.last = n.file.id, n.file.last
	}
	return nil
}

func (n *network) release() { n.file.release() }

// serve runs one session after the other until ctx ends. Only the first may
// end it, and only if this machine lacks the interface or the dataplane:
// later whatever broke (somebody deleted the underlay link) is looked for anew.
func (n *network) serve(ctx context.Context) error {
	defer n.closeStore()
	const minPause, maxPause = 500 * time.Millisecond, 30 * time.Second
	for pause := minPause; ; {
		began := time.Now()
		err := n.openStore(ctx)
		if err == nil {
			err = n.session(ctx)
		}
		n.health.setReady(n.name, false)
		switch {
		case ctx.Err() != nil:
			return nil
		case n.draining():
			return n.giveBack(ctx, err)
		case errors.Is(err, errUnfit):
			continue // waitForNetwork has the reason
		case errors.Is(err, errUnderlayChanged):
			n.closeStore() // connections from an address that is gone would only time out
			fallthrough
		case errors.Is(err, control.ErrNetworkChanged):
			n.log.Info("session ended: opening another", "why", err)
			if time.Since(began) > minPause { // and what changes to and fro is followed at a pace
				pause = minPause
				continue
			}
		case !n.opened:
			return err
		default:
			if time.Since(began) > maxPause {
				pause = minPause
			}
			n.log.Error("session ended: starting it again", "err", err, "after", pause)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-n.drain:
			return n.giveBack(ctx, err)
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
}

// giveBack ends a drain: the subnet is nobody's, so its file goes. Where the session
// did not get to giving the lease back it is done here.
func (n *network) giveBack(ctx context.Context, err error) error {
	if !errors.Is(err, errDrained) {
		if err := n.openStore(ctx); err != nil {
			return fmt.Errorf("drain: %w", err)
		}
		if _, err := releaseOf(ctx, n.store, n.node); err != nil {
			return fmt.Errorf("drain: %w", err)
		}
	}
	if err := os.Remove(n.subnetFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// errDrained ends a session after the lease was given back.
var errDrained = errors.New("lease given back")
