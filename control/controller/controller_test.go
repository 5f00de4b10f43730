package controller_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// TestNoSyncBeforeFirstReset: a restart must not withdraw what works.
func TestNoSyncBeforeFirstReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		updates := make(chan control.Update)
		s := &watchStore{Store: b.memory.Open(t), updates: []chan control.Update{updates}}
		c := controller.New(b.config(s))
		b.run(c)
		synctest.Wait()
		if _, ok := leaseOf(c); !ok {
			t.Fatal("no lease")
		}
		updates <- control.Update{} // out of contract, and still no reason to withdraw
		synctest.Wait()
		if b.plane.count() != 0 {
			t.Fatalf("%d Syncs before the first Reset", b.plane.count())
		}
		updates <- control.Update{Reset: true}
		synctest.Wait()
		if b.plane.count() != 1 {
			t.Errorf("%d Syncs after the first Reset", b.plane.count())
		}
	})
}

// watchStore hands out the given channels, one per Watch.
type watchStore struct {
	control.Store
	updates []chan control.Update
	watches atomic.Int32
}

func (s *watchStore) Watch(ctx context.Context) <-chan control.Update {
	i := int(s.watches.Add(1)) - 1
	if i >= len(s.updates) {
		return s.Store.Watch(ctx)
	}
	in, out := s.updates[i], make(chan control.Update)
	go func() {
		defer close(out)
		for {
			select {
			case <-ctx.Done():
				return
			case u, ok := <-in:
				if !ok {
					return
				}
				out <- u
			}
		}
	}()
	return out
}

func (b *bench) config(s control.Store) controller.Config {
	b.t.Helper()
	n, err := control.ParseNetwork([]byte(scriptConfig))
	if err != nil {
		b.t.Fatal(err)
	}
	return controller.Config{Store: s, Overlay: b.plane, Network: n, MTU: 1450, Log: quiet(),
		Node: control.Node{ID: "a", Name: "host-1", PublicIP: publicIP(1), Previous: []netip.Prefix{netip.MustParsePrefix("10.3.1.0/24")}}}
}

// run starts c.Run; kill or the end of the test ends it.
func (b *bench) run(c *controller.Controller) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	b.ctl, b.cancel, b.ended = c, cancel, ended
	go func() { ended <- c.Run(ctx) }()
}

// TestWatchThatEndsEarly: a Store that breaks its contract is watched again.
func TestWatchThatEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		ended := make(chan control.Update)
		close(ended)
		b.memory.PutRaw(t, "10.3.2.0-24", goodLease(2))
		b.run(controller.New(b.config(&watchStore{Store: b.memory.Open(t), updates: []chan control.Update{ended}})))
		time.Sleep(time.Second)
		synctest.Wait()
		if len(b.plane.wanted().Peers) != 1 {
			t.Errorf("peers %v", b.plane.wanted().Peers)
		}
	})
}

// TestTwoNodesOfOnePublicIP: the second one is told, and takes over when the first is gone.
func TestTwoNodesOfOnePublicIP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := newBench(t), newBench(t)
		second.memory = first.memory
		first.run(controller.New(first.config(first.memory.Open(t))))
		synctest.Wait()
		cfg := second.config(second.memory.Open(t))
		cfg.Node.ID = "b"
		cfg.Log = slog.New(slog.NewTextHandler(second.events, nil))
		c := controller.New(cfg)
		second.run(c)
		time.Sleep(10 * time.Second)
		if _, ok := leaseOf(c); ok || second.plane.count() != 0 {
			t.Fatal("two nodes with one public IP have leases")
		}
		if log := strings.Join(second.events.take(), "\n"); strings.Count(log, "level=ERROR") != 1 || !strings.Contains(log, "host-1") {
			t.Errorf("the second node logs:\n%s", log)
		}
		if err := first.ctl.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if _, ok := leaseOf(c); !ok {
			t.Error("no lease once the first has gone")
		}
	})
}

// TestDrain: nothing to give back, a store that is away, and a context that ends.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		away := errors.New("connection refused")
		b.memory.SetDown(away)
		c := controller.New(b.config(b.memory.Open(t)))
		b.run(c)
		if err := c.Drain(t.Context()); err != nil {
			t.Errorf("drain without a lease: %v", err)
		}
		b.kill()
		b.memory.SetDown(nil)
		c = controller.New(b.config(b.memory.Open(t)))
		b.run(c)
		synctest.Wait()
		b.memory.SetDown(away)
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := c.Drain(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("drain with the store away: %v", err)
		}
		b.memory.SetDown(nil)
		begin := time.Now()
		if err := c.Drain(t.Context()); err != nil {
			t.Errorf("drain again: %v", err)
		}
		if keys := b.memory.Keys(t); len(keys) != 0 || time.Since(begin) < time.Second {
			t.Errorf("entries %v after %v", keys, time.Since(begin))
		}
		b.kill()
		c = controller.New(b.config(b.memory.Open(t)))
		b.run(c)
		synctest.Wait()
		b.memory.SetDown(away)
		time.AfterFunc(time.Second, b.cancel)
		if err := c.Drain(t.Context()); err == nil {
			t.Error("drained without an answer of the store")
		}
	})
}

// TestLeaseOfShortLife: a TTL below twice the margin is renewed at half of it.
func TestLeaseOfShortLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		c := controller.New(b.config(b.memory.Open(t)))
		b.run(c)
		synctest.Wait()
		l, _ := leaseOf(c)
		time.Sleep(10 * 24 * time.Hour)
		now, ok := leaseOf(c)
		if s := c.Status().Stats; !ok || now.CreateRevision != l.CreateRevision || s.Renewals < 10 || s.Losses != 0 {
			t.Errorf("after ten days: %+v, %v, %+v", now, ok, s)
		}
	})
}

// TestStatsCount shows what each counter counts.
func TestStatsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.memory.PutRaw(t, "10.3.2.0-24", goodLease(2))
		b.memory.PutRaw(t, "10.3.2.0-25", goodLease(3))
		b.memory.PutRaw(t, "garbage", []byte("x"))
		c := controller.New(b.config(b.memory.Open(t)))
		b.run(c)
		synctest.Wait()
		want := controller.Stats{Leases: 3, Bad: 1, Rejected: 1, Peers: 1, BadUpdates: 1, Syncs: 1}
		if got := c.Status().Stats; got != want {
			t.Errorf("stats %+v, want %+v", got, want)
		}
	})
}

// TestFiveThousandLeasesAtStart: in real time, from Run to the end of the Sync.
func TestFiveThousandLeasesAtStart(t *testing.T) {
	b := newBench(t)
	for i := range 5000 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 3, byte(i >> 5), byte(i << 3)}), 29)
		b.memory.PutRaw(t, control.Lease{Subnet: p}.Key(), goodLease(i+2))
	}
	b.memory.SetConfig(t, []byte(`{"Network":"10.3.0.0/16","SubnetLen":29}`))
	cfg := b.config(b.memory.Open(t))
	n, err := cfg.Store.Network(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	cfg.Network, cfg.Ready = n, func() { close(ready) }
	begin := time.Now()
	b.run(controller.New(cfg))
	select {
	case <-ready:
	case <-time.After(10 * time.Second):
		t.Fatal("not ready")
	}
	t.Logf("ready after %v", time.Since(begin))
	if len(b.plane.wanted().Peers) != 5000 {
		t.Errorf("%d peers", len(b.plane.wanted().Peers))
	}
}

// FuzzFollow: whatever sequence of changes the store goes through, gaps included,
// in the end the peers are those of a RIB that sees the store for the first time.
func FuzzFollow(f *testing.F) {
	f.Add([]byte("\x00\x12\x05\x31\x02\x12\x04\x00\x01\x12\x00\x31\x03\x07"))
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) > 200 {
			return
		}
		synctest.Test(t, func(t *testing.T) { followOps(t, ops) })
	})
}

// followOps runs two bytes per operation: what to do, and to which key and node.
func followOps(t *testing.T, ops []byte) {
	b := newBench(t)
	b.run(controller.New(b.config(b.memory.Open(t))))
	synctest.Wait()
	for ; len(ops) >= 2; ops = ops[2:] {
		key := fmt.Sprintf("10.3.%d.0-%d", ops[1]&6+2, 23+ops[1]>>3&1)
		switch ops[0] % 6 {
		case 0, 1:
			b.memory.PutRaw(t, key, goodLease(2+int(ops[1]>>4)))
		case 2:
			b.memory.DeleteRaw(t, key)
		case 3:
			b.memory.PutRaw(t, fmt.Sprintf("junk%d", ops[1]), ops)
		case 4:
			b.memory.Disconnect(t)
		case 5:
			synctest.Wait()
		}
	}
	time.Sleep(2 * time.Minute) // what is kept is dropped, too
	synctest.Wait()
	l, ok := leaseOf(b.ctl)
	if !ok {
		t.Fatal("no lease")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rib := control.NewRIB(b.config(nil).Network)
	rib.Apply(<-b.memory.Open(t).Watch(ctx))
	want, _ := rib.Peers(l)
	if got := fmt.Sprint(b.plane.wanted().Peers); got != fmt.Sprint(want) || b.plane.wanted().Subnets[0] != l.Subnet {
		t.Errorf("own %v, peers %v\nwant %v, %v", b.plane.wanted().Subnets, got, l.Subnet, want)
	}
}

// TestReadyWaitsForTheSubnetFile: without it the CNI plugin cannot work.
func TestReadyWaitsForTheSubnetFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		dir := filepath.Join(t.TempDir(), "run")
		if err := os.WriteFile(dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := b.config(b.memory.Open(t))
		var ready atomic.Int32
		cfg.SubnetFile, cfg.Ready = filepath.Join(dir, "subnet.env"), func() { ready.Add(1) }
		cfg.Log = slog.New(slog.NewTextHandler(b.events, nil))
		b.run(controller.New(cfg))
		time.Sleep(time.Minute)
		synctest.Wait()
		if log := strings.Join(b.events.take(), "\n"); ready.Load() != 0 || strings.Count(log, "subnet file") != 1 {
			t.Fatalf("ready %d times, log:\n%s", ready.Load(), log)
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		b.memory.PutRaw(t, "10.3.2.0-24", goodLease(2))
		synctest.Wait()
		if _, err := os.Stat(cfg.SubnetFile); err != nil || ready.Load() != 1 {
			t.Errorf("ready %d times, %v", ready.Load(), err)
		}
	})
}

var _ controller.Overlay = (*recorder)(nil)
