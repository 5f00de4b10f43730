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
func (s *Store) WatchNetwork(ctx context.Context) <-chan control.Network {
	out := make(chan control.Network)
	go func() { // ends with ctx, which the close of the channel tells the receiver
		defer close(out)
		s.pollNetwork(ctx, out)
	}()
	return out
}

func (s *Store) pollNetwork(ctx context.Context, out chan<- control.Network) {
	tick := time.NewTicker(configPoll)
	defer tick.Stop()
	var last control.Network
	var reported string // the last error
	for {
		n, err := s.Network(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if err.Error() != reported {
				reported = err.Error()
				s.cfg.Log.WarnContext(ctx, "network config is not usable: keeping the last one", "err", err)
			}
		default:
			reported = ""
			if n == last {
				break
			}
			select {
			case out <- n:
				last = n
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
