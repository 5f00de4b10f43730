package etcd_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"
)

// TestStoppedWhileItAcquires: a daemon that is stopped before it knows that etcd has written its entry keeps the lease of its last run.
func TestStoppedWhileItAcquires(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	before := c.open(t)
	l := acquire(t, before, 1)
	before.Close()
	written := c.entry(t, l.Key())
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	c.proxy.setTrap(prefix+"/subnets/"+l.Key(), func(p *pair, request []byte) {
		c.proxy.pace.Store(int64(10 * time.Millisecond)) // the answer comes too late
		p.server.Write(request)
		eventually(t, "etcd has written the entry", func() bool { return c.entry(t, l.Key()) != written })
		stop()
		c.proxy.pace.Store(0)
		_, _ = io.Copy(p.server, p.client)
	})
	n, vteps := node(1)
	n.Previous = append(n.Previous, l.Subnet)
	if _, err := c.open(t).Acquire(ctx, n, vteps); !errors.Is(err, context.Canceled) {
		t.Fatalf("acquire: %v, want context.Canceled", err)
	}
	if keys := c.Keys(t); len(keys) != 1 || keys[0] != l.Key() {
		t.Errorf("keys %v, want %s: its subnet is free for others", keys, l.Key())
	}
}
