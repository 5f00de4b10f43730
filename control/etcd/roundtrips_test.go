package etcd_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/control/etcd"
)

// TestRoundTripsOfAStart counts how often a start waits for etcd before peers and lease are known: the time that it
// takes when etcd is far away, in round trips. The first is that of the connection.
func TestRoundTripsOfAStart(t *testing.T) {
	for _, tt := range []struct {
		name    string
		restart bool // of a node that was killed
		most    float64
	}{
		{"new node", false, 6},
		{"killed node", true, 9},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.SetConfig(t, []byte(config))
			const oneWay = 200 * time.Millisecond
			trips := tt.most + 1
			for try := 1; try <= 5 && trips > tt.most+0.9; try++ { // this machine may be busy
				c.proxy.delay.Store(0)
				if tt.restart {
					acquire(t, c.open(t), try)
				}
				c.proxy.delay.Store(int64(oneWay))
				trips = start(t, c, try).Seconds() / (2 * oneWay).Seconds()
				t.Logf("%.1f round trips", trips)
			}
			if trips > tt.most+0.9 {
				t.Errorf("%.1f round trips, want %.0f", trips, tt.most)
			}
		})
	}
}

// start starts what a daemon of node i starts: it reads the network config, and then runs a Controller. It returns how long it takes
// until that is ready.
func start(t *testing.T, c *cluster, i int) time.Duration {
	t.Helper()
	s, err := etcd.Open(t.Context(), c.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	begin := time.Now()
	network, err := s.Network(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n, vteps := node(i)
	ready := make(chan struct{})
	ctl := controller.New(controller.Config{Store: s, Overlay: &plane{vteps: vteps}, Node: n, Network: network, MTU: 1450,
		Ready: func() { close(ready) }, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ctl.Run(ctx) }()
	select {
	case <-ready:
	case <-time.After(hang):
		t.Fatal("not ready")
	}
	took := time.Since(begin)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	return took
}
