package etcd_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
)

// The records of others at the address of node 1, as whoever may write to etcd can write them: of another node, and of a clone.
var foreignRecords = map[string]string{"another node": `{"id":"evil","name":"evil"}`, "a clone": `{"id":"id-1","name":"evil","boot":"z","netns":3}`}

// putForeign writes the record of node 1 under an etcd lease of a TTL in seconds. Nobody keeps it alive.
func (c *cluster) putForeign(t *testing.T, value string, ttl int64) clientv3.LeaseID {
	t.Helper()
	grant, err := c.client.Grant(t.Context(), ttl)
	if err != nil {
		t.Fatal(err)
	}
	c.do(t, clientv3.OpPut(record1, value, clientv3.WithLease(grant.ID)))
	return grant.ID
}

// TestForeignRecordLocksNobodyOut: a record that nobody keeps alive keeps a node from its address not at all if its etcd lease is longer than
// that of any node, and else for half of that.
func TestForeignRecordLocksNobodyOut(t *testing.T) {
	t.Parallel()
	for name, value := range foreignRecords {
		for _, ttl := range []int64{8, 9_000_000_000} {
			c := newCluster(t)
			c.SetConfig(t, []byte(config))
			c.cfg.NodeTTL = time.Second
			c.putForeign(t, value, ttl)
			s := c.open(t)
			_, err := acquireAs(t, s, 1, "a")
			if ttl == 8 && (!errors.Is(err, control.ErrTaken) || errors.Is(err, control.ErrCloned)) || ttl > 8 && err != nil {
				t.Errorf("%s, %d s: %v", name, ttl, err)
			}
			begin := time.Now()
			eventually(t, "a lease", func() bool { _, err := acquireAs(t, s, 1, "a"); return err == nil })
			if took := time.Since(begin); took > 7*time.Second {
				t.Errorf("%s, %d s: a lease after %s", name, ttl, took)
			}
		}
	}
}

// TestNodeWithAnotherTTL: a record that is kept alive is the sign of life of a node, also if its etcd lease is longer than that of this one.
func TestNodeWithAnotherTTL(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	c.cfg.NodeTTL = 6 * time.Second
	acquire(t, c.open(t), 1)
	c.cfg.NodeTTL = time.Second
	s := c.open(t)
	other, vteps := node(1)
	other.ID = "id-other"
	for begin := time.Now(); time.Since(begin) < 6*time.Second; time.Sleep(100 * time.Millisecond) {
		if _, err := s.Acquire(t.Context(), other, vteps); !errors.Is(err, control.ErrTaken) {
			t.Fatalf("after %s: %v, want ErrTaken", time.Since(begin), err)
		}
	}
}

// TestHolderKeepsItsLease: neither a record of another alone, nor one beside junk over the own entry, or without that, costs a running node its
// lease, unless somebody keeps the record alive.
func TestHolderKeepsItsLease(t *testing.T) {
	t.Parallel()
	for record, value := range foreignRecords {
		for harm, do := range map[string]func(c *cluster, l control.Lease){
			"alone":       func(*cluster, control.Lease) {},
			"overwritten": func(c *cluster, l control.Lease) { c.PutRaw(t, l.Key(), []byte("junk")) },
			"deleted":     func(c *cluster, l control.Lease) { c.DeleteRaw(t, l.Key()) },
		} {
			for _, ttl := range []int64{4, 9_000_000_000} {
				t.Run(fmt.Sprint(record, ", entry ", harm, ", TTL ", ttl), func(t *testing.T) {
					t.Parallel()
					c, s, l := newHolder(t)
					c.putForeign(t, value, ttl)
					do(c, l)
					var err error
					eventually(t, "a renewal", func() bool {
						var now control.Lease
						if now, err = s.Renew(t.Context(), l); err == nil && now.Subnet != l.Subnet {
							t.Errorf("it has %s now", now.CIDRs())
						}
						return err == nil || errors.Is(err, control.ErrLost)
					})
					if err != nil {
						t.Errorf("renewed: %v", err)
					}
				})
			}
		}
	}
}

// newHolder returns a running node 1 with a lease, whose keeper is as it is without a watch.
func newHolder(t *testing.T) (*cluster, *etcd.Store, control.Lease) {
	t.Helper()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	c.cfg.NodeTTL = time.Second
	s := c.open(t)
	l, err := acquireAs(t, s, 1, "a")
	if err != nil {
		t.Fatal(err)
	}
	return c, s, l
}

// TestHolderYieldsToALivingNode: it does if another keeps the record alive.
func TestHolderYieldsToALivingNode(t *testing.T) {
	t.Parallel()
	for record, value := range foreignRecords {
		c, s, l := newHolder(t)
		id := c.putForeign(t, value, 4)
		kept, err := c.client.KeepAlive(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for range kept {
			}
		}()
		eventually(t, "the loss beside "+record, func() bool { _, err := s.Renew(t.Context(), l); return errors.Is(err, control.ErrLost) })
	}
}
