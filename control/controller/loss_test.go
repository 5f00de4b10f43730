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
	"github.com/overlayd/overlayd/control/controltest"
	"github.com/overlayd/overlayd/dataplane"
)

const (
	ownKey   = "10.3.1.0-24"                                       // what config's node acquires
	otherNet = `{"Network":"10.4.0.0/16","SubnetMin":"10.4.10.0"}` // not scriptConfig; no node chooses otherKey
	oneNet   = `{"Network":"10.3.0.0/16",` +                       // with one subnet, ownKey's
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
	b.run(controller.New(cfg))
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

// TestGoneLeaseEndsAtItsDeadline: a store that does not write costs no lease; one that has lost the entry
// besides costs it when it would have expired. The same subnet comes back with the store.
func TestGoneLeaseEndsAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.memory = controltest.NewMemory(time.Minute)
		b.held(otherNet)
		b.memory.SetFull(errors.New("no space"))
		held := func(what string, want bool) {
			t.Helper()
			synctest.Wait()
			_, err := os.Stat(b.file)
			if _, held := leaseOf(b.ctl); held != want || (err == nil) != want {
				t.Fatalf("%s: held %v, subnet file %v", what, held, err)
			}
		}
		time.Sleep(10 * time.Minute)
		held("a full store", true)
		l, _ := leaseOf(b.ctl)
		b.memory.DeleteRaw(t, l.Key())
		synctest.Wait()
		time.Sleep(time.Until(l.Expires) - time.Second)
		held("before the deadline", true)
		time.Sleep(2 * time.Second)
		held("after the deadline", false)
		if s := b.ctl.Status(); s.LeaseFault.Reason == "" || s.Stats.Losses != 1 {
			t.Errorf("status %+v", s)
		}
		b.memory.SetFull(nil)
		time.Sleep(10 * time.Second)
		held("a store with space again", true)
		if again, _ := leaseOf(b.ctl); again.Subnet != l.Subnet {
			t.Errorf("subnet %s, was %s", again.Subnet, l.Subnet)
		}
	})
}

// TestPeersOutliveTheStoresData: leases that go one after the other, as those do whose nodes cannot reach the store,
// stay used for a minute as soon as they are most; so do those of a store that is empty when the daemon starts.
func TestPeersOutliveTheStoresData(t *testing.T) {
	for _, restart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			for i := 2; i <= 5; i++ {
				b.memory.PutRaw(t, otherKey(i), goodLease(i))
			}
			b.held(otherNet)
			time.Sleep(leasesWritten)
			b.wantPeers("before", 4)
			if restart {
				b.kill()
			}
			for i := 2; i <= 5; i++ {
				b.memory.DeleteRaw(t, otherKey(i))
				time.Sleep(time.Second)
			}
			if restart {
				b.memory.DeleteRaw(t, b.memory.Keys(t)[0]) // this node's
				b.held(otherNet)
			}
			b.wantPeers("all gone", 4)
			b.memory.PutRaw(t, otherKey(2), goodLease(2))
			time.Sleep(50 * time.Second)
			b.wantPeers("in the first minute", 4)
			time.Sleep(20 * time.Second)
			b.wantPeers("after it", 1)
		})
	}
}

// otherKey is that of node i in otherNet.
func otherKey(i int) string { return fmt.Sprintf("10.4.%d.0-24", i) }

// wantPeers checks how many peers the dataplane has.
func (b *bench) wantPeers(what string, want int) {
	b.t.Helper()
	synctest.Wait()
	if got := len(b.plane.wanted().Peers); got != want {
		b.t.Errorf("%s: %d peers, want %d", what, got, want)
	}
}

// TestLeasesFileFollowsLosses: the file has what went first until it is known that most leases do not follow, and
// nothing that was dropped.
func TestLeasesFileFollowsLosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		for i := 2; i <= 5; i++ {
			b.memory.PutRaw(t, otherKey(i), goodLease(i))
		}
		b.held(otherNet)
		time.Sleep(leasesWritten + time.Second)
		for i := 2; i <= 3; i++ {
			b.memory.DeleteRaw(t, otherKey(i))
		}
		time.Sleep(leasesWritten + time.Second)
		b.kill()
		for _, key := range b.memory.Keys(t) {
			b.memory.DeleteRaw(t, key)
		}
		b.held(otherNet)
		b.wantPeers("after the restart", 4)
		time.Sleep(time.Minute + leasesWritten)
		b.wantPeers("when they are dropped", 0)
		text, err := os.ReadFile(controller.LeasesFile(b.file))
		if lines := strings.Count(string(text), "\n") - strings.Count(string(text), "\nused "); err != nil || lines != 2 {
			t.Errorf("%v, leases file has %d lines, want 2:\n%s", err, lines, text)
		}
	})
}

// TestLeasesFileBelongsToASubnetFile: without one there is neither.
func TestLeasesFileBelongsToASubnetFile(t *testing.T) {
	t.Chdir(t.TempDir())
	text := fmt.Sprintf("overlayd leases 1 [10.3.0.0/16]\n1\t10.3.2.0-24\t%s\t{}\n2\t10.3.3.0-24\t%s\t{}\n", goodLease(2), goodLease(3))
	if err := os.WriteFile(controller.LeasesFile(""), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		cfg := b.config(b.memory.Open(t))
		cfg.SubnetFile = ""
		b.run(controller.New(cfg))
		b.wantPeers("from a file of somebody else", 0)
	})
}

// resuming is an Overlay that can go on before its first Sync.
type resuming struct{ *recorder }

func (r resuming) Resume(w dataplane.Wanted) {
	r.events.add(fmt.Sprintf("resume own=%v peers=%d mac=%v", w.Subnets, len(w.Peers), len(w.VTEPs)))
}

// TestResumesBeforeTheStoreAnswers: an Overlay that forwards by itself goes on with the leases of the file while the store is
// silent, if this node still has the address and the subnet of its own one.
func TestResumesBeforeTheStoreAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*controller.Config)
		want   string
	}{
		"as it was":       {func(*controller.Config) {}, "resume own=[10.3.1.0/24] peers=2 mac=1"},
		"another address": {func(c *controller.Config) { c.Node.PublicIP = publicIP(9) }, ""},
		"no subnet file":  {func(c *controller.Config) { c.Node.Previous = nil }, ""},
		"the kernel's":    {func(c *controller.Config) { c.SharedMACs = false }, ""},
		"another network": {func(c *controller.Config) {
			c.Network.Network = netip.MustParsePrefix("10.4.0.0/16")
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				for i := 2; i <= 3; i++ {
					b.memory.PutRaw(t, fmt.Sprintf("10.3.%d.0-24", i), goodLease(i))
				}
				b.start(netip.MustParsePrefix("10.3.1.0/24"))
				time.Sleep(leasesWritten)
				b.kill()
				b.events.take()
				cfg := b.config(silentStore{b.memory.Open(t)})
				cfg.SubnetFile, cfg.SharedMACs, cfg.Overlay = b.file, true, resuming{b.plane}
				tt.change(&cfg)
				b.run(controller.New(cfg))
				synctest.Wait()
				if got := strings.Join(b.events.take(), "; "); got != tt.want {
					t.Errorf("got %q, want %q", got, tt.want)
				}
			})
		})
	}
}

// silentStore answers nothing.
type silentStore struct{ control.Store }

func (silentStore) Acquire(ctx context.Context, _ control.Node, _ []dataplane.VTEP) (control.Lease, error) {
	<-ctx.Done()
	return control.Lease{}, ctx.Err()
}

func (silentStore) Watch(ctx context.Context) <-chan control.Update {
	c := make(chan control.Update)
	context.AfterFunc(ctx, func() { close(c) })
	return c
}

// leasesWritten is more than it takes until the leases file is written.
const leasesWritten = 15 * time.Second

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

// TestNextLeaseBesideTheUnderlay: what this host has come to need of the underlay since the start counts for the lease
// that it gets after a loss, and for its first one if the store was down until then.
func TestNextLeaseBesideTheUnderlay(t *testing.T) {
	const three = `{"Network":"10.3.0.0/16","SubnetMin":"10.3.1.0","SubnetMax":"10.3.3.0"}`
	for name, start := range map[string]func(b *bench){
		"after a loss": func(b *bench) { b.held(three) },
		"the first": func(b *bench) {
			b.memory.SetConfig(b.t, []byte(three))
			b.memory.SetDown(os.ErrDeadlineExceeded)
			b.run(controller.New(b.familyConfig(three, "4")))
			synctest.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.memory.PutRaw(t, "10.3.3.0-24", goodLease(3))
				start(b)
				b.ctl.SetUnderlay(control.Underlay{Needs: []control.Need{{Addr: netip.MustParseAddr("10.3.2.1"), What: "the default gateway of this host"}}})
				b.memory.PutRaw(t, ownKey, goodLease(2))
				b.memory.SetDown(nil)
				time.Sleep(10 * time.Second)
				b.memory.DeleteRaw(t, "10.3.3.0-24")
				time.Sleep(10 * time.Second)
				if l, held := leaseOf(b.ctl); !held || l.Key() != "10.3.3.0-24" {
					t.Errorf("lease %s, held %v; want the only one that holds no gateway", l.Key(), held)
				}
			})
		})
	}
}

// TestSubnetFileThatCannotBeRemoved is logged, and tried again.
func TestSubnetFileThatCannotBeRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.memory.SetConfig(t, []byte(oneNet))
		cfg := b.config(b.memory.Open(t))
		cfg.Network, _ = cfg.Store.Network(t.Context())
		cfg.SubnetFile, cfg.Log = b.file, slog.New(slog.NewTextHandler(b.events, nil))
		b.run(controller.New(cfg))
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
		if w := b.plane.wanted(); len(w.Subnets) != 0 || len(w.Peers) == 0 {
			t.Errorf("the dataplane has own %v, peers %v", w.Subnets, w.Peers)
		}
		if _, err := os.Stat(b.file); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("subnet file: %v", err)
		}
	})
}

// TestClonedHostEnds: a host that lost its lease to its clone with the same address withdraws it, and does not try for ever.
func TestClonedHostEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		s := &clonedStore{Store: b.memory.Open(t)}
		cfg := b.config(s)
		cfg.SubnetFile = b.file
		b.run(controller.New(cfg))
		synctest.Wait()
		s.cloned.Store(true)
		b.memory.PutRaw(t, ownKey, goodLease(2))
		if err := <-b.ended; !errors.Is(err, control.ErrCloned) {
			t.Errorf("Run ended with %v", err)
		}
		b.cancel()
		b.cancel = nil
		if st := b.ctl.Status(); st.Held || st.LeaseFault.Reason != "cloned" || len(b.plane.wanted().Subnets) != 0 {
			t.Errorf("status %+v, the dataplane has %v", st, b.plane.wanted().Subnets)
		}
		if _, err := os.Stat(b.file); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("subnet file: %v", err)
		}
	})
}

// clonedStore is a Store in which another host has the ID and the address of this one.
type clonedStore struct {
	control.Store
	cloned atomic.Bool
}

func (s *clonedStore) Acquire(ctx context.Context, n control.Node, vteps []dataplane.VTEP) (control.Lease, error) {
	if s.cloned.Load() {
		return control.Lease{}, fmt.Errorf("%w: %w", control.ErrTaken, control.ErrCloned)
	}
	return s.Store.Acquire(ctx, n, vteps)
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
		b.run(controller.New(cfg))
		b.wantChanged()
		text, err := os.ReadFile(b.file)
		if keys := b.memory.Keys(t); len(keys) != 0 || b.plane.count() != 0 || string(text) != file {
			t.Errorf("entries %v, %d Syncs, subnet file %q, %v", keys, b.plane.count(), text, err)
		}
	})
}

// TestConfigThatComesBack: a config that changes to and fro while the first lease is acquired costs none.
func TestConfigThatComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.memory.SetConfig(t, []byte(otherNet))
		b.run(controller.New(b.config(b.memory.Open(t))))
		time.Sleep(120 * time.Millisecond)
		b.memory.SetConfig(t, []byte(scriptConfig))
		time.Sleep(time.Second)
		if _, ok := leaseOf(b.ctl); !ok {
			t.Errorf("no lease: %+v", b.ctl.Status())
		}
	})
}

// TestNetworkChangedDuringAcquire: no lease is written, and it is tried a few times only.
func TestNetworkChangedDuringAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		s := &lateStore{Store: b.memory.Open(t), change: func() { b.memory.SetConfig(t, []byte(otherNet)) }}
		b.run(controller.New(b.config(s)))
		b.wantChanged()
		if keys := b.memory.Keys(t); len(keys) != 0 || s.acquired.Load() != 8 {
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
