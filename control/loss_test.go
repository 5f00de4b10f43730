package control_test

import (
	"context"
	"errors"
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
	"github.com/overlayd/overlayd/dataplane"
)

const (
	ownKey   = "10.3.1.0-24"                 // what config's node acquires
	otherNet = `{"Network":"10.4.0.0/16"}`   // not scriptConfig
	oneNet   = `{"Network":"10.3.0.0/16",` + // with one subnet, ownKey's
		`"SubnetMin":"10.3.1.0","SubnetMax":"10.3.1.0"}`
)

// held starts a Controller, by config but for the network, and waits until it has its lease.
func (b *bench) held(network string) {
	b.t.Helper()
	b.memory.SetConfig(b.t, []byte(network))
	cfg := b.config(b.memory.Open(b.t))
	n, err := cfg.Store.Network(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	cfg.Network, cfg.SubnetFile = n, b.file
	b.run(control.New(cfg))
	synctest.Wait()
	if _, err := os.Stat(b.file); err != nil {
		b.t.Fatalf("no subnet file: %v", err)
	}
}

// wantChanged waits for Run to end with ErrNetworkChanged.
func (b *bench) wantChanged() {
	b.t.Helper()
	select {
	case err := <-b.ended:
		if !errors.Is(err, control.ErrNetworkChanged) {
			b.t.Errorf("Run ended with %v", err)
		}
		b.cancel()
		b.cancel = nil
	case <-time.After(time.Minute):
		b.t.Fatal("Run goes on")
	}
}

// TestLossRemovesSubnetFile: while there is no lease, no CNI plugin may go on with the
// addresses of the one that is lost.
func TestLossRemovesSubnetFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.held(oneNet)
		before, err := os.ReadFile(b.file)
		if err != nil {
			t.Fatal(err)
		}
		b.memory.PutRaw(t, ownKey, goodLease(2))
		time.Sleep(10 * time.Second)
		if text, err := os.ReadFile(b.file); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("subnet file without a lease: %q, %v", text, err)
		}
		b.memory.DeleteRaw(t, ownKey)
		time.Sleep(10 * time.Second)
		if text, err := os.ReadFile(b.file); err != nil || string(text) != string(before) {
			t.Errorf("subnet file with the next lease: %q, %v", text, err)
		}
	})
}

// TestLostSubnetIsNotTakenBack from a clone of this host, which has its MAC too: the two
// would take it from each other for ever.
func TestLostSubnetIsNotTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.held(scriptConfig)
		vtep := b.plane.VTEPs()[0]
		clone := control.Lease{Subnet: netip.MustParsePrefix("10.3.1.0/24"), PublicIP: publicIP(2), BackendType: "vxlan",
			Backend: control.VTEPData{VNI: vtep.VNI, MAC: vtep.MAC}}
		b.memory.PutRaw(t, ownKey, clone.Value())
		time.Sleep(10 * time.Second)
		if got, _ := b.memory.GetRaw(t, ownKey); string(got) != string(clone.Value()) {
			t.Errorf("the clone's entry became %q", got)
		}
		if l, held := leaseOf(b.ctl); !held || l.Key() == ownKey || b.ctl.Status().Stats.Losses != 1 {
			t.Errorf("lease %+v, held %v, %d losses", l, held, b.ctl.Status().Stats.Losses)
		}
	})
}

// TestSubnetFileThatCannotBeRemoved is logged, and tried again.
func TestSubnetFileThatCannotBeRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.memory.SetConfig(t, []byte(oneNet))
		cfg := b.config(b.memory.Open(t))
		cfg.Network, _ = cfg.Store.Network(t.Context())
		cfg.SubnetFile, cfg.Log = b.file, slog.New(slog.NewTextHandler(b.events, nil))
		b.run(control.New(cfg))
		synctest.Wait()
		inside := filepath.Join(b.file, "x") // a folder in its place, with something in it
		if err := errors.Join(os.Remove(b.file), os.MkdirAll(inside, 0o755)); err != nil {
			t.Fatal(err)
		}
		b.memory.PutRaw(t, ownKey, goodLease(2))
		time.Sleep(time.Minute)
		if log := strings.Join(b.events.take(), "\n"); strings.Count(log, "remove subnet file") != 1 {
			t.Errorf("log:\n%s", log)
		}
		if err := os.Remove(inside); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if _, err := os.Stat(b.file); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("still there: %v", err)
		}
	})
}

// TestNetworkChangedAndLeaseLost: there is no lease for this Controller any more, so that
// it writes none, takes back what it had, and ends.
func TestNetworkChangedAndLeaseLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.memory.PutRaw(t, "10.3.9.0-24", goodLease(9))
		b.held(scriptConfig)
		b.memory.SetConfig(t, []byte(otherNet))
		time.Sleep(time.Minute) // not looked at while the lease lasts
		b.memory.PutRaw(t, ownKey, goodLease(2))
		b.wantChanged()
		if keys := b.memory.Keys(t); len(keys) != 2 || keys[0] != ownKey || keys[1] != "10.3.9.0-24" {
			t.Errorf("entries %v, want none of this node", keys)
		}
		if w := b.plane.last; len(w.Subnets) != 0 || len(w.Peers) == 0 {
			t.Errorf("the dataplane has own %v, peers %v", w.Subnets, w.Peers)
		}
		if _, err := os.Stat(b.file); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("subnet file: %v", err)
		}
	})
}

// TestNetworkChangedBeforeFirstLease: between the caller's reading the config and Run.
func TestNetworkChangedBeforeFirstLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		const file = "FLANNEL_SUBNET=10.3.1.1/24\n"
		if err := os.WriteFile(b.file, []byte(file), 0o644); err != nil {
			t.Fatal(err)
		}
		cfg := b.config(b.memory.Open(t))
		cfg.SubnetFile = b.file
		b.memory.SetConfig(t, []byte(otherNet))
		b.run(control.New(cfg))
		b.wantChanged()
		text, err := os.ReadFile(b.file)
		if keys := b.memory.Keys(t); len(keys) != 0 || b.plane.syncs != 0 || string(text) != file {
			t.Errorf("entries %v, %d Syncs, subnet file %q, %v", keys, b.plane.syncs, text, err)
		}
	})
}

// TestNetworkChangedDuringAcquire: one lease is written, and only once.
func TestNetworkChangedDuringAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		s := &lateStore{Store: b.memory.Open(t), change: func() { b.memory.SetConfig(t, []byte(otherNet)) }}
		b.run(control.New(b.config(s)))
		b.wantChanged()
		if keys := b.memory.Keys(t); len(keys) != 1 || s.acquired.Load() != 1 {
			t.Errorf("%d acquisitions, entries %v", s.acquired.Load(), keys)
		}
	})
}

// lateStore is a Store whose config changes after it was read.
type lateStore struct {
	control.Store
	change   func()
	acquired atomic.Int32
}

func (s *lateStore) Acquire(ctx context.Context, n control.Node, vteps []dataplane.VTEP) (control.Lease, error) {
	s.change()
	s.acquired.Add(1)
	return s.Store.Acquire(ctx, n, vteps)
}

// TestLossIsCounted: what a store has lost counts for as long as it is kept.
func TestLossIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		for i, key := range []string{"10.3.2.0-24", "10.3.3.0-24"} {
			b.memory.PutRaw(t, key, goodLease(i+2))
		}
		b.held(scriptConfig)
		b.memory.SetDown(os.ErrDeadlineExceeded)
		for _, key := range b.memory.Keys(t) {
			b.memory.DeleteRaw(t, key)
		}
		b.memory.SetDown(nil)
		for _, want := range []int{3, 1} {
			time.Sleep(40 * time.Second)
			if got := b.ctl.Status().Stats; got.Leases != want || got.Peers != want-1 || got.Losses != 0 {
				t.Errorf("%+v, want %d leases", got, want)
			}
		}
	})
}
