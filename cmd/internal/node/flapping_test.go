package node

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/logs"
	"github.com/overlayd/overlayd/control"
)

// TestNetworkThatFlaps: one that comes and goes while the first one of its name is still being removed is begun once more at most, and
// the log does not fill.
func TestNetworkThatFlaps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.several()
	w.cfg.StoreLog = logs.NewBound(w.cfg.Log)
	var opened atomic.Int32
	goOn := make(chan struct{})
	w.cfg.OpenStore = func(context.Context, string, *slog.Logger) (control.Store, error) {
		opened.Add(1)
		<-goOn
		return nil, errDown
	}
	w.start()
	const flaps = 200
	for range flaps {
		l.names <- []string{"red"}
		l.names <- nil
	}
	l.names <- []string{"red"}
	close(goOn)
	w.await("the last one fails", func() bool { return w.log.count("cannot serve network: trying again") > 0 })
	if n := opened.Load(); n > 5 {
		t.Errorf("the store was opened %d times", n)
	}
	if n := w.log.count("network has gone"); n > 100 {
		t.Errorf("%d lines of %d that have gone", n, flaps)
	}
	l.names <- nil
	w.await("it has gone", func() bool { return w.names() == "" })
}

// TestNetworksOfManyNames: whoever makes networks with ever new names leaves nothing of them in the memory, and a bounded number of files.
func TestNetworksOfManyNames(t *testing.T) {
	const many, atOnce, remembered = 1000, 100, 300
	ctx, cancel := context.WithCancel(t.Context())
	d := New(Config{Log: slog.New(slog.DiscardHandler), SubnetDir: t.TempDir(), OpenStore: func(context.Context, string, *slog.Logger) (control.Store, error) { return nil, errDown }})
	d.expects.maxPast = remembered
	s := serving{daemon: d, running: map[string]*runningNetwork{}}
	for i := 0; i < many; i += atOnce {
		names := make([]string, atOnce)
		for j := range names {
			names[j] = fmt.Sprintf("net%d", i+j)
		}
		s.update(ctx, names)
		s.update(ctx, nil)
		await(t, "they have gone", func() bool { return len(d.expects.all()) == 0 })
	}
	s.group.Wait()
	s.update(ctx, nil)
	if n := len(s.running); n > 0 {
		t.Errorf("%d networks are remembered that have gone", n)
	}
	files, err := os.ReadDir(d.cfg.SubnetDir)
	if err != nil || len(files) < remembered || len(files) > remembered+atOnce {
		t.Errorf("%d files are left, want about %d; %v", len(files), remembered, err)
	}
	cancel()
}
