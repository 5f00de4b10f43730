package userspace

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/device"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/encap"
)

// TestForeignRoutesAreReported: whoever leads packets to a peer away by a route that is more specific than that of the
// whole network is named, once, and the peer has failed as long as the route is there.
func TestForeignRoutesAreReported(t *testing.T) {
	h := newHost(t)
	var log netnstest.Log
	var d *Dataplane
	h.Must(func() (err error) {
		cfg := h.config()
		cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		d, err = Open(cfg)
		return err
	})
	w := h.wanted()
	w.Peers = []dataplane.Peer{testPeer("192.0.2.9", "10.42.9.0/24", encap.MAC{2, 1}), testPeer("192.0.2.8", "10.42.8.0/24", encap.MAC{2, 2})}
	h.Must(func() error { _, err := d.Sync(t.Context(), w); return err })
	h.run(d)
	for _, route := range []string{"10.42.9.0/24 via 192.0.2.1", "blackhole 10.42.9.0/24", "blackhole 10.42.9.128/25", "unreachable 10.42.9.7", "10.42.9.0/25 dev lo"} {
		for i, step := range []struct {
			do, said string
			peers    int
		}{{"add", "cannot be repaired now", 1}, {"del", "as it should be again", 0}} {
			before := log.Count(step.said)
			h.Run("sh", "-c", "ip route "+step.do+" "+route)
			for deadline := time.Now().Add(10 * time.Second); log.Count(step.said) == before; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%s %s: not reported", step.do, route)
				}
			}
			s := d.Status()
			if len(s.Peers) != step.peers || i == 0 && (s.Peers[0].Peer.Addr != w.Peers[0].Addr || !errors.Is(s.Peers[0], dataplane.ErrRouteTaken)) {
				t.Errorf("%s %s: status %+v", step.do, route, s)
			}
		}
	}
	h.Run("ip", "route", "add", "10.42.1.7", "dev", "lo") // a pod of this host
	h.requireSynced()
	if s := d.Status(); s.State != dataplane.StateOK {
		t.Errorf("status %+v", s)
	}
}

// TestRenamedDeviceGetsItsNameBack, and one that has gone to another network namespace ends Run.
func TestRenamedDeviceGetsItsNameBack(t *testing.T) {
	h, other := newHost(t), netnstest.New(t)
	d := h.open()
	h.sync(d)
	done := make(chan error, 1)
	go func() { done <- d.Run(t.Context(), func() {}) }()
	h.Run("ip", "link", "set", "flannel.1", "name", "xx1")
	for deadline := time.Now().Add(10 * time.Second); h.link() == nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no name")
		}
	}
	h.requireSynced()
	l := h.link()
	h.Must(func() error { return netlink.LinkSetNsFd(l, int(other.Handle())) })
	select {
	case err := <-done:
		if !errors.Is(err, device.ErrGone) {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Run goes on without its device")
	}
	h.sync(h.open())
	h.requireSynced()
}
