package node

import (
	"context"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/overlay"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// What the daemon before this one has left, and what this one leaves to the next.

// forget has the service manager close files, unless they are for the next process.
func (d *Daemon) forget(names []string) {
	if r := d.run.Load(); r != nil && r.ended() != nil && !d.draining() {
		return
	}
	d.estate.Unkeep(names)
}

// forgetFiles is forget for what a session of c has read from, unless its dataplane is kept.
func (n *Network) forgetFiles(c control.Network) {
	if n.kept == nil {
		n.daemon.forget(n.filesOf(c, n.iface))
	}
}

// leaveFiles has the service manager keep what the session reads from, once it is ready: while no daemon runs,
// packets wait there, and the next one goes on with them.
func (s *Session) leaveFiles(ctx context.Context, ready <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return nil
	case <-ready:
	}
	n := s.network
	if n.cfg.Keeper == nil || s.overlay.Mode() != fit.Userspace {
		return nil
	}
	for again := (pace.Backoff{Low: 100 * time.Millisecond, High: overlay.RetryPeriod}); ; {
		exports, err := s.userspace().Export()
		if shared := s.overlay.Forwarding().Shared; err == nil && shared != nil {
			var more []carrier.Export
			more, err = shared.Export()
			exports = append(exports, more...)
		}
		if err == nil {
			err = n.cfg.Keeper.Put(exports)
		}
		carrier.CloseExports(exports)
		if err == nil {
			return nil
		}
		n.warnOnce("packets that arrive between two daemons are lost: the service manager does not keep the sockets and queues", err)
		if !pace.Sleep(ctx, again.Next(), nil) {
			return nil
		}
	}
}
