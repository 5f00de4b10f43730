package controller_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/control/controltest"
	"github.com/overlayd/overlayd/dataplane"
)

// TestEntryGoneBeforeItWasSeen is put back, although no list and no event has shown it.
func TestEntryGoneBeforeItWasSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.memory.SetConfig(t, []byte(oneNet))
		cfg := b.config(hastyStore{b.memory.Open(t), b.memory, t})
		cfg.Network, _ = cfg.Store.Network(t.Context())
		b.run(controller.New(cfg))
		time.Sleep(2 * time.Second)
		if got, _ := b.memory.GetRaw(t, ownKey); len(got) == 0 {
			t.Errorf("there are %v", b.memory.Keys(t))
		}
	})
}

// TestDeletedEntryIsBackInTime: an entry that is deleted just after a renewal, or twice, is there again before the peers have
// forgotten it, which they do after 0.6 s. Whoever deletes it all the time does not keep the store busy.
func TestDeletedEntryIsBackInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.memory = controltest.NewMemory(time.Minute)
		b.held(oneNet)
		renewals := func() uint64 { return b.ctl.Status().Stats.Renewals }
		deleted := func(when string) {
			t.Helper()
			b.memory.DeleteRaw(t, ownKey)
			time.Sleep(500 * time.Millisecond)
			if _, ok := b.memory.GetRaw(t, ownKey); !ok {
				t.Errorf("deleted %s: not there", when)
			}
		}
		for renewals() == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		deleted("after a renewal")
		time.Sleep(3 * time.Second)
		b.memory.DeleteRaw(t, ownKey)
		time.Sleep(10 * time.Millisecond)
		deleted("again")
		before := renewals()
		for range 200 {
			b.memory.DeleteRaw(t, ownKey)
			time.Sleep(50 * time.Millisecond)
		}
		if n := renewals() - before; n > 20 {
			t.Errorf("%d renewals in ten seconds", n)
		}
	})
}

// TestFilesThatCannotBeWritten: the status says why, until they can be.
func TestFilesThatCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.file = filepath.Join(t.TempDir(), "run", "subnet.env")
		dir := filepath.Dir(b.file)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(os.Mkdir(dir, 0o755))
		b.held(oneNet)
		nodes := 10
		check := func(when string, want bool) {
			t.Helper()
			nodes++ // the leases file has to be written
			b.memory.PutRaw(t, "10.3.2.0-24", fmt.Appendf(nil, `{"PublicIP":"192.168.0.%d","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0e:00:00:00:00:02"}}`, nodes))
			time.Sleep(time.Minute)
			synctest.Wait()
			s := b.ctl.Status()
			for name, f := range map[string]controller.Fault{"subnet file": s.SubnetFileFault, "leases file": s.LeasesFileFault} {
				if (f.Err != "") != want {
					t.Errorf("%s, %s: fault %+v", when, name, f)
				}
			}
		}
		check("at first", false)
		must(os.Rename(dir, dir+".away"))
		must(os.WriteFile(dir, nil, 0o600)) // no directory
		check("without a directory", true)
		must(os.Remove(dir)) // the daemon makes it again
		check("with it again", false)
	})
}

// TestRenewedSoonAfterAnOutage: however long the store was away, a lease is renewed within seconds of its return, even one that lasts a day.
func TestRenewedSoonAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.held(oneNet)
		b.memory.SetDown(errors.New("etcd does not answer"))
		for b.ctl.Status().Stats.RenewFails == 0 {
			time.Sleep(time.Minute)
		}
		time.Sleep(10 * time.Minute)
		b.memory.SetDown(nil)
		time.Sleep(5 * time.Second)
		if s := b.ctl.Status(); s.Stats.Renewals == 0 || s.LeaseFault.Reason != "" {
			t.Errorf("five seconds after the outage: %d renewals, fault %+v", s.Stats.Renewals, s.LeaseFault)
		}
	})
}

// hastyStore is a Store of which somebody deletes each entry as soon as it is written.
type hastyStore struct {
	control.Store
	memory *controltest.Memory
	t      *testing.T
}

func (s hastyStore) Acquire(ctx context.Context, n control.Node, vteps []dataplane.VTEP) (control.Lease, error) {
	l, err := s.Store.Acquire(ctx, n, vteps)
	s.memory.DeleteRaw(s.t, l.Key())
	return l, err
}
