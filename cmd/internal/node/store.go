package node

import (
	"context"
	"io"

	"github.com/overlayd/overlayd/control"
)

// openStore opens the network's store unless it is open.
func (n *Network) openStore(ctx context.Context) error {
	if n.store != nil {
		return nil
	}
	s, err := n.cfg.OpenStore(ctx, n.name, n.cfg.StoreLog.Of(n.log))
	if err != nil {
		return err
	}
	n.store = s
	now := *n.snapshot.Load()
	now.store = s
	n.snapshot.Store(&now)
	return nil
}

// closeStore closes the store; the next openStore opens another.
func (n *Network) closeStore() {
	if c, ok := n.store.(io.Closer); ok {
		if err := c.Close(); err != nil {
			n.log.Warn("cannot close store", "err", err)
		}
	}
	n.store = nil
}

// watchConfig sends what the store has for a network config whenever it is something else, until ctx
// ends; then it closes the channel. It returns nil if the store does not report changes.
func (n *Network) watchConfig(ctx context.Context) <-chan control.StoredNetwork {
	if w, ok := n.store.(control.ConfigWatcher); ok {
		return w.WatchNetwork(ctx)
	}
	return nil
}
