package etcd_test

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
)

// inherited opens a Store in the place of one that has handed over, by a node that change may have changed.
func inherited(t *testing.T, c *cluster, change func(*control.Node)) (before, after control.Lease) {
	t.Helper()
	n, vteps := node(1)
	n.Process = control.Process{Boot: "boot", NetNS: 1, Nonce: "nonce", Version: "1"}
	first, err := etcd.Open(t.Context(), c.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if before, err = first.Acquire(t.Context(), n, vteps); err != nil {
		t.Fatal(err)
	}
	n.Handed = append(first.Bequeath(), before.Handle)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	change(&n)
	s := c.open(t)
	if after, err = s.Acquire(t.Context(), n, vteps); err != nil {
		t.Fatal(err)
	}
	if l, err := s.Renew(t.Context(), after); err != nil || l.Handle != after.Handle {
		t.Errorf("renewed: %+v, %v", l, err)
	}
	return before, after
}

// TestBequeath: the next process goes on with lease and record of the one before, and writes nothing that is as it
// should be.
func TestBequeath(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change                func(*control.Node)
		sameEntry, sameRecord bool
	}{
		"the same":        {func(*control.Node) {}, true, true},
		"another version": {func(n *control.Node) { n.Process.Version = "2" }, true, false},
		"nothing handed":  {func(n *control.Node) { n.Handed = nil }, false, false},
		"other handles":   {func(n *control.Node) { n.Handed = []int64{7, 8} }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.SetConfig(t, []byte(config))
			record := prefix + "/overlayd/nodes/192.0.0.1"
			before, after := inherited(t, c, test.change)
			if same := after.Handle == before.Handle && after.ModRevision == before.ModRevision; same != test.sameEntry || after.Subnet != before.Subnet {
				t.Errorf("lease %+v, was %+v", after, before)
			}
			// The process before wrote it first, and then in the transaction that wrote the entry.
			if same := c.do(t, clientv3.OpGet(record)).Get().Kvs[0].Version == 2; same != test.sameRecord {
				t.Errorf("record written: %v", !same)
			}
			eventually(t, "two etcd leases", func() bool { return c.leases(t) == 2 })
		})
	}
}
