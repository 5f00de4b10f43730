package etcd_test

import (
	"log/slog"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// TestAuthenticationTurnedOn: a node that etcd would refuse from now on knows it long before it renews its lease, and for as long as that is so,
// although etcd keeps its record alive and goes on with its watch.
func TestAuthenticationTurnedOn(t *testing.T) {
	t.Parallel()
	testAuthenticationTurnedOn(t, newCluster(t))
}

func testAuthenticationTurnedOn(t *testing.T, c *cluster) {
	ctx := t.Context()
	c.SetConfig(t, []byte(config))
	var log syncBuffer
	c.cfg.Log, c.cfg.NodeTTL = slog.New(slog.NewTextHandler(&log, nil)), time.Second
	s := c.open(t)
	l := acquire(t, s, 1)
	receive(t, watch(t, s))
	if _, err := c.client.UserAdd(ctx, "root", "secret"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.UserGrantRole(ctx, "root", "root"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.AuthEnable(ctx); err != nil {
		t.Fatal(err)
	}
	refused := func() bool { st := s.Status(); return st.Connected && st.Refusal && st.Err != "" }
	eventually(t, "etcd refuses", refused)
	was := s.Status()
	root, err := clientv3.New(clientv3.Config{Endpoints: c.client.Endpoints(), Username: "root", Password: "secret", Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if _, err := root.Put(ctx, prefix+"/subnets/10.5.99.0-24", "seen by the watch"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "beats, and an event of the watch", func() bool {
		now := s.Status()
		if !refused() || !now.Since.Equal(was.Since) {
			t.Fatalf("not refused any more: %+v", now)
		}
		return now.LastAnswer.Sub(was.LastAnswer) > time.Second && now.Revision > was.Revision
	})
	if n := log.Count("etcd refuses this node's user"); n != 1 {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
	if _, err := root.AuthDisable(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "etcd answers", func() bool { return s.Status().Err == "" })
	if _, err := s.Renew(ctx, l); err != nil {
		t.Error(err)
	}
}
