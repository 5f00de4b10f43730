package kube

import (
	"context"
	"time"

	"github.com/overlayd/overlayd/control"
)

// configPoll is the period at which the file of the network config is read.
const configPoll = time.Second

// WatchNetwork implements control.ConfigWatcher. It reads the file each second: a ConfigMap is
// mounted by links, which are replaced.
func (s *Store) WatchNetwork(ctx context.Context) <-chan control.StoredNetwork {
	out := make(chan control.StoredNetwork)
	go func() { // ends with ctx, which the close of the channel tells the receiver
		defer close(out)
		s.pollNetwork(ctx, out)
	}()
	return out
}

func (s *Store) pollNetwork(ctx context.Context, out chan<- control.StoredNetwork) {
	tick := time.NewTicker(configPoll)
	defer tick.Stop()
	var last control.StoredNetwork
	for {
		n, err := s.Network(ctx)
		if ctx.Err() != nil {
			return
		}
		if now := (control.StoredNetwork{Network: n, Err: err}); !now.Same(last) {
			if err != nil {
				s.cfg.Log.WarnContext(ctx, "network config is not usable: keeping the last one", "err", err)
			}
			select {
			case out <- now:
				last = now
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
