package etcd_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
	"github.com/overlayd/overlayd/dataplane"
)

// snapshot copies etcd's data, for restore. It returns when the Stores are connected again.
func (c *cluster) snapshot(tb testing.TB, stores ...*etcd.Store) {
	tb.Helper()
	c.stop(tb)
	if err := os.CopyFS(filepath.Join(c.dir, "snapshot"), os.DirFS(filepath.Join(c.dir, "data"))); err != nil {
		tb.Fatal(err)
	}
	c.start(tb, "data")
	connected(tb, stores)
}

func connected(tb testing.TB, stores []*etcd.Store) {
	tb.Helper()
	for _, s := range stores {
		eventually(tb, "etcd answers", func() bool { _, err := s.Network(tb.Context()); return err == nil })
	}
}

// restore makes etcd what it was at the time of snapshot: its revisions are those of that time, too.
func (c *cluster) restore(tb testing.TB, stores ...*etcd.Store) {
	tb.Helper()
	c.stop(tb)
	c.start(tb, "snapshot")
	connected(tb, stores)
}

// shortLived makes the Stores' signs of life short, and returns what they log.
func (c *cluster) shortLived() *syncBuffer {
	log := &syncBuffer{}
	c.cfg.NodeTTL, c.cfg.Log = time.Second, slog.New(slog.NewTextHandler(log, nil))
	return log
}

// derived gives node i a lease with the MAC that overlayd derives, and the subnets if they are free.
func derived(t *testing.T, s *etcd.Store, i int, subnets ...string) (control.Lease, error) {
	t.Helper()
	n, vteps := node(i)
	vteps[0].MAC = dataplane.MAC(n.PublicIP, 1)
	for _, p := range subnets {
		n.Previous = append(n.Previous, netip.MustParsePrefix(p))
	}
	return s.Acquire(t.Context(), n, vteps)
}

func mustDerive(t *testing.T, s *etcd.Store, i int, subnets ...string) control.Lease {
	t.Helper()
	l, err := derived(t, s, i, subnets...)
	if err != nil || len(subnets) > 0 && l.Subnet.String() != subnets[0] {
		t.Fatalf("node %d acquired %s, %v, want %s", i, l.CIDRs(), err, subnets)
	}
	return l
}

// revoke takes l from its node.
func revoke(t *testing.T, s *etcd.Store, l control.Lease) {
	t.Helper()
	if _, err := s.Revoke(t.Context(), l.Key()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Renew(t.Context(), l); !errors.Is(err, control.ErrLost) {
		t.Fatalf("Renew of what was revoked: %v", err)
	}
}

// drain receives all that a watch of s.
func drain(t *testing.T, s *etcd.Store) {
	updates := watch(t, s)
	go func() { // ends with the watch
		for range updates {
		}
	}()
}

// lines is how often a text is in a log.
func lines(log *syncBuffer, text string) int { return strings.Count(log.String(), text) }

const (
	twoSubnets = `{"Network":"10.5.0.0/16","SubnetMin":"10.5.2.0","SubnetMax":"10.5.3.0","Backend":{"Type":"vxlan"}}`
	twoOfEach  = `{"Network":"10.5.0.0/16","SubnetMin":"10.5.2.0","SubnetMax":"10.5.3.0","Backend":{"Type":"vxlan"},
		"EnableIPv6":true,"IPv6Network":"fd05::/48","IPv6SubnetMin":"fd05:0:0:2::","IPv6SubnetMax":"fd05:0:0:4::"}`
	tookBack = "own lease put back in the place of one of a former holder"
)

// TestRestoreAfterASubnetChangedHands: two nodes that live keep what they serve, though the snapshot is of a time at which
// the one had what the other has by now.
func TestRestoreAfterASubnetChangedHands(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, config   string
		was, is, other []string
		formerFirst    bool
		line           string
	}{
		{"the former holder renews first", twoSubnets, []string{"10.5.3.0/24"}, []string{"10.5.2.0/24"}, []string{"10.5.3.0/24"}, true, tookBack},
		{"the holder renews first", twoSubnets, []string{"10.5.3.0/24"}, []string{"10.5.2.0/24"}, []string{"10.5.3.0/24"}, false, tookBack},
		{"one subnet of two", twoOfEach, []string{"10.5.3.0/24", "fd05:0:0:3::/64"}, []string{"10.5.2.0/24", "fd05:0:0:2::/64"},
			[]string{"10.5.3.0/24", "fd05:0:0:4::/64"}, false, "entry of a former holder deleted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.SetConfig(t, []byte(tt.config))
			log := c.shortLived()
			c.cfg.NodeTTL = time.Minute // nobody waits for it
			former, holder := c.open(t), c.open(t)
			ghost := mustDerive(t, former, 1, tt.was...)
			c.snapshot(t, former)
			revoke(t, former, ghost)
			now, own := mustDerive(t, former, 1, tt.is...), mustDerive(t, holder, 2, tt.other...)
			c.restore(t, former, holder)

			if tt.formerFirst {
				now = renew(t, former, now)
				own = renew(t, holder, own)
			} else {
				if _, err := holder.Renew(t.Context(), own); err == nil || errors.Is(err, control.ErrLost) || !strings.Contains(err.Error(), "192.0.0.1") {
					t.Errorf("the holder renews with %v, want an error that names the former one and says to wait", err)
				}
				now = renew(t, former, now)
				own = renew(t, holder, own)
			}
			for _, l := range []control.Lease{now, own} {
				if got := c.entry(t, l.Key()); got.value != string(l.Value()) || got.lease != l.Handle {
					t.Errorf("entry %+v does not fit %+v", got, l)
				}
			}
			if n := lines(log, tt.line); n != 1 {
				t.Errorf("%d lines say %q:\n%s", n, tt.line, log.String())
			}
		})
	}
}

// TestRestoredEntryOfADeadHolder gives way to the node that lives once it is known that its own does not; that
// of a flanneld, which gives no sign of life, does not.
func TestRestoredEntryOfADeadHolder(t *testing.T) {
	t.Parallel()
	for _, flanneld := range []bool{false, true} {
		c := newCluster(t)
		c.SetConfig(t, []byte(twoSubnets))
		log := c.shortLived()
		c.cfg.NodeTTL = 4 * time.Second // the record that comes back lasts longer than the holder waits
		var ghost control.Lease
		if flanneld {
			n, vteps := node(1)
			ghost = control.Lease{Subnet: netip.MustParsePrefix("10.5.3.0/24"), PublicIP: n.PublicIP, BackendType: "vxlan",
				Backend: control.VTEPData{VNI: 1, MAC: vteps[0].MAC}}
			put(t, c, ghost)
			c.snapshot(t)
			c.DeleteRaw(t, ghost.Key())
		} else {
			former := c.open(t)
			ghost = mustDerive(t, former, 1, "10.5.3.0/24")
			c.snapshot(t, former)
			if err := former.Release(t.Context(), ghost); err != nil {
				t.Fatal(err)
			}
		}
		holder := c.open(t)
		l := mustDerive(t, holder, 2, "10.5.3.0/24")
		c.restore(t, holder)
		var err error
		eventually(t, "a decision", func() bool {
			_, err = holder.Renew(t.Context(), l)
			return err == nil || errors.Is(err, control.ErrLost)
		})
		if lost := errors.Is(err, control.ErrLost); lost != flanneld || lines(log, tookBack) != 1 && !flanneld {
			t.Errorf("flanneld %v: the holder renews with %v:\n%s", flanneld, err, log.String())
		}
	}
}

// TestSpoiltEntryOfAnotherAfterARestore: etcd went back, another node got the subnet at the very revision at which this one
// had got it, and its entry was overwritten by what is not a lease. It is not this node's to mend.
func TestSpoiltEntryOfAnotherAfterARestore(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(twoSubnets))
	log := c.shortLived()
	holder, other := c.open(t), c.open(t)
	updates := watch(t, holder)
	receive(t, updates)
	c.snapshot(t, holder, other)
	grow := func(to int64) {
		for c.do(t, clientv3.OpPut("x", "")).Put().Header.Revision < to {
		}
	}
	grow(c.do(t, clientv3.OpGet("x")).Get().Header.Revision + 20)
	l := mustDerive(t, holder, 1, "10.5.3.0/24")
	c.restore(t, holder, other)
	for lines(log, "etcd was replaced or restored") == 0 {
		receive(t, updates)
	}
	eventually(t, "the record is back", func() bool {
		return len(c.do(t, clientv3.OpGet(prefix+"/overlayd/nodes/", clientv3.WithPrefix())).Get().Kvs) == 1
	})
	grow(l.CreateRevision - 2) // a node writes its record, and then both
	theirs := mustDerive(t, other, 2, "10.5.3.0/24")
	if theirs.CreateRevision != l.CreateRevision {
		t.Fatalf("the entries were made at %d and %d, want one revision", l.CreateRevision, theirs.CreateRevision)
	}
	c.PutRaw(t, l.Key(), []byte("spoilt"))
	if _, err := holder.Renew(t.Context(), l); !errors.Is(err, control.ErrLost) {
		t.Errorf("Renew: %v, want ErrLost:\n%s", err, log.String())
	}
}

// TestRestoredEntryThatIsKeptAlive: the node of the entry has no record, but keeps the entry's etcd lease alive. It lives.
func TestRestoredEntryThatIsKeptAlive(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(twoSubnets))
	log := c.shortLived()
	n, _ := node(1)
	ghost := control.Lease{Subnet: netip.MustParsePrefix("10.5.3.0/24"), PublicIP: n.PublicIP, BackendType: "vxlan",
		Backend: control.VTEPData{VNI: 1, MAC: dataplane.MAC(n.PublicIP, 1)}}
	c.PutLeased(t, ghost.Key(), ghost.Value())
	c.snapshot(t)
	c.DeleteRaw(t, ghost.Key())
	holder := c.open(t)
	l := mustDerive(t, holder, 2, "10.5.3.0/24")
	c.restore(t, holder)
	var err error
	eventually(t, "a decision", func() bool {
		keepAlive(t, c, c.entry(t, ghost.Key()).lease)
		_, err = holder.Renew(t.Context(), l)
		return err == nil || errors.Is(err, control.ErrLost)
	})
	if !errors.Is(err, control.ErrLost) {
		t.Errorf("the holder renews with %v:\n%s", err, log.String())
	}
}

func keepAlive(t *testing.T, c *cluster, lease int64) {
	t.Helper()
	if _, err := c.client.KeepAliveOnce(t.Context(), clientv3.LeaseID(lease)); err != nil {
		t.Fatal(err)
	}
}

// TestRestoredEntryOfALivingHolder: the node of the entry lives and has nothing else. It keeps it, whether it takes it up
// before or after the other one first looks.
func TestRestoredEntryOfALivingHolder(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{false, true} {
		c := newCluster(t)
		c.SetConfig(t, []byte(`{"Network":"10.5.0.0/16","SubnetMin":"10.5.3.0","SubnetMax":"10.5.3.0","Backend":{"Type":"vxlan"}}`))
		c.shortLived()
		former, holder := c.open(t), c.open(t)
		ghost := mustDerive(t, former, 1)
		c.snapshot(t, former)
		revoke(t, former, ghost)
		l := mustDerive(t, holder, 2)
		c.restore(t, former, holder)
		if !before {
			if _, err := holder.Renew(t.Context(), l); err == nil || errors.Is(err, control.ErrLost) {
				t.Errorf("first renewal: %v, want an error that says to wait", err)
			}
		}
		again := mustDerive(t, former, 1)
		begin := time.Now()
		eventually(t, "the loss", func() bool {
			_, err := holder.Renew(t.Context(), l)
			return errors.Is(err, control.ErrLost)
		})
		if took := time.Since(begin); !before && took > time.Second {
			t.Errorf("an entry that was written since costs %s", took)
		}
		if got := c.entry(t, l.Key()); got.lease != again.Handle {
			t.Errorf("the entry is %+v, want that of %+v", got, again)
		}
	}
}

// TestRestoredEntryOfOneWhoEnds: the node of the entry took it up after the restore, and its daemon has ended: its dataplane
// goes on, and so it keeps the subnet.
func TestRestoredEntryOfOneWhoEnds(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(twoSubnets))
	log := c.shortLived()
	former, holder := c.open(t), c.open(t)
	ghost := mustDerive(t, former, 1, "10.5.3.0/24")
	c.snapshot(t, former)
	if err := former.Release(t.Context(), ghost); err != nil {
		t.Fatal(err)
	}
	l := mustDerive(t, holder, 2, "10.5.3.0/24")
	c.restore(t, former, holder)
	again := mustDerive(t, former, 1)
	if _, err := holder.Renew(t.Context(), l); err == nil || errors.Is(err, control.ErrLost) {
		t.Errorf("first renewal: %v, want an error that says to wait", err)
	}
	if err := former.Close(); err != nil {
		t.Fatal(err)
	}
	var err error
	eventually(t, "a decision", func() bool {
		_, err = holder.Renew(t.Context(), l)
		return err == nil || errors.Is(err, control.ErrLost)
	})
	if got := c.entry(t, l.Key()); !errors.Is(err, control.ErrLost) || got.lease != again.Handle {
		t.Errorf("%v, and the entry is %+v, want that of %+v:\n%s", err, got, again, log.String())
	}
}

// TestEmptyEtcd: another node has got the subnet after etcd had lost everything. Its entry is old by its revision only, also
// after etcd was restarted.
func TestEmptyEtcd(t *testing.T) {
	t.Parallel()
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarted %v", restarted), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.SetConfig(t, []byte(twoSubnets))
			log := c.shortLived()
			c.cfg.NodeTTL = time.Minute // nobody waits for it
			holder, other := c.open(t), c.open(t)
			before := c.do(t, clientv3.OpGet("x")).Get().Header.Revision
			updates := watch(t, holder) // its stream begins once somebody receives: in the new etcd, after a list of the old one
			eventually(t, "a list", func() bool { return holder.Status().Revision >= before })
			for range 50 {
				c.SetConfig(t, []byte(twoSubnets)) // the new etcd's revisions are far below
			}
			l := mustDerive(t, holder, 1, "10.5.3.0/24")
			c.stop(t)
			c.start(t, "empty")
			c.SetConfig(t, []byte(twoSubnets))
			connected(t, []*etcd.Store{holder, other})
			for lines(log, "etcd was replaced or restored") == 0 {
				receive(t, updates)
			}
			theirs := mustDerive(t, other, 2, "10.5.3.0/24")
			if restarted {
				c.stop(t)
				c.start(t, "empty")
				connected(t, []*etcd.Store{holder, other})
				for u := (control.Update{}); !u.Reset || len(u.Leases) == 0; u = receive(t, updates) {
				}
			}
			if _, err := holder.Renew(t.Context(), l); !errors.Is(err, control.ErrLost) {
				t.Errorf("Renew: %v, want ErrLost", err)
			}
			if got := c.entry(t, l.Key()); got.lease != theirs.Handle {
				t.Errorf("the entry is %+v, want that of %+v", got, theirs)
			}
			if n := lines(log, "etcd was replaced or restored"); n != 1 {
				t.Errorf("%d lines about the loss, want one", n)
			}
		})
	}
}

// TestRestoredEntryOfTheOwnAddress is deleted, with one line, once the node's own lease is back.
func TestRestoredEntryOfTheOwnAddress(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(twoSubnets))
	log := c.shortLived()
	s := c.open(t)
	ghost := mustDerive(t, s, 1, "10.5.3.0/24")
	c.snapshot(t, s)
	revoke(t, s, ghost)
	l := mustDerive(t, s, 1, "10.5.2.0/24")
	drain(t, s)
	c.restore(t, s)
	l = renew(t, s, l)
	eventually(t, "the ghost is gone", func() bool { return slices.Equal(c.Keys(t), []string{l.Key()}) })
	eventually(t, "one line", func() bool { return lines(log, "was back in etcd: deleted") == 1 })
	if again := renew(t, s, l); again.ModRevision != l.ModRevision {
		t.Errorf("the own lease is now %+v, was %+v", again, l)
	}
}
