package etcd_test

import (
	"testing"
	"time"
)

// TestOwnEntryOfBeforeTheLease: a daemon watches before it has a lease; the other entry of its address that it saw then goes.
func TestOwnEntryOfBeforeTheLease(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	c.cfg.NodeTTL = time.Second
	l := acquire(t, c.open(t), 1)
	ghost := l
	ghost.Subnet = moveSubnet
	c.PutLeased(t, ghost.Key(), ghost.Value())
	s := c.open(t)
	attend(t, s)
	if again := acquire(t, s, 1, l.Subnet); again.Key() != l.Key() {
		t.Fatalf("acquired %s, want %s", again.Key(), l.Key())
	}
	eventually(t, "one entry", func() bool { return len(c.Keys(t)) == 1 })
}
