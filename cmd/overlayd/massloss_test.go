package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
)

// storePrefix is that of everything that overlayd has in etcd.
const storePrefix = "/coreos.com/network/"

// deleteAll deletes every key of a network but its config, in one transaction.
func (c *cluster) deleteAll() {
	c.t.Helper()
	_, err := c.client.Txn(c.t.Context()).Then(clientv3.OpDelete(subnets, clientv3.WithPrefix()),
		clientv3.OpDelete(storePrefix+"overlayd/", clientv3.WithPrefix())).Commit()
	if err != nil {
		c.t.Fatal(err)
	}
}

// expireAll ends every etcd lease, as its time does.
func (c *cluster) expireAll() {
	c.t.Helper()
	all, err := c.client.Leases(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	for _, l := range all.Leases {
		if _, err := c.client.Revoke(c.t.Context(), l.ID); err != nil {
			c.t.Fatal(err)
		}
	}
}

// wipe replaces etcd by an empty one, in which is only the config.
func (c *cluster) wipe(config string) {
	c.t.Helper()
	c.etcd.stop(unix.SIGKILL)
	c.startEtcd()
	c.put(storePrefix+"config", config)
}

// loss is a way in which a store loses all leases.
type loss struct {
	name string
	lose func(c *cluster, mode string)
	// crash says that it costs packets of the userspace dataplane because the daemon is killed: only what
	// follows counts.
	crash bool
}

func massLosses() []loss {
	return []loss{
		{name: "all keys deleted in one transaction", lose: func(c *cluster, _ string) { c.deleteAll() }},
		{name: "all leases expired at once", lose: func(c *cluster, _ string) { c.expireAll() }},
		{name: "daemon restarted on an empty store", crash: true, lose: func(c *cluster, mode string) {
			c.hosts[0].daemon.stop(unix.SIGKILL)
			c.wipe(testNetwork)
			c.hosts[0].up("--dataplane", mode)
		}},
	}
}

// TestMassLoss: whatever becomes of the store's data, nodes that forwarded before lose no packet: those whose daemons
// run, and one whose kernel forwards on without its daemon. It is watched for two seconds after all losses in
// turn, and with OVERLAYD_LOSS=60s for as long as is promised after each.
func TestMassLoss(t *testing.T) {
	t.Parallel()
	watched := durationFrom(t, "OVERLAYD_LOSS", 2*time.Second)
	for _, mode := range []string{modeKernel, modeUserspace} {
		turns := [][]loss{massLosses()}
		if watched > 10*time.Second { // by the end of which the node without a daemon is forgotten
			turns = nil
			for _, l := range massLosses() {
				turns = append(turns, []loss{l})
			}
		}
		for _, turn := range turns {
			t.Run(mode+" "+turn[0].name, func(t *testing.T) {
				t.Parallel()
				loseAll(t, mode, turn, watched)
			})
		}
	}
}

func loseAll(t *testing.T, mode string, turn []loss, watched time.Duration) {
	c := newCluster(t, 3, testNetwork)
	a, b := c.upPair([2]string{mode, mode})
	c.hosts[2].up("--dataplane", modeKernel)
	orphan := c.hosts[2].pod(0, 0)
	warmUp(t, a, orphan)
	warmUp(t, b, orphan)
	eventually(t, patience, "the first host knows all leases after a restart", func() error {
		return hasLine(c.hosts[0].subnetFile+".leases", strings.TrimPrefix(c.hosts[2].key(), subnets))
	})
	c.hosts[2].daemon.stop(unix.SIGKILL)
	for _, l := range turn {
		all := startAll(t, a, b, orphan)
		promised := time.Now().Add(watched)
		l.lose(c, mode)
		if l.crash && mode == modeUserspace {
			all.finish()
			all = startAll(t, a, b, orphan)
		}
		time.Sleep(max(time.Until(promised), 2*time.Second))
		if lost := all.finish(); lost > 0 {
			t.Errorf("%s: %d datagrams lost", l.name, lost)
		}
	}
}

// meters measure both ways between several pairs of pods.
type meters []*meter

// startAll measures between a and each of the others.
func startAll(t *testing.T, a *pod, others ...*pod) (all meters) {
	t.Helper()
	for _, b := range others {
		there, back := startMeters(t, a, b)
		all = append(all, there, back)
	}
	return all
}

func (all meters) finish() uint64 {
	var lost atomic.Uint64
	var done sync.WaitGroup
	for _, m := range all { // at once: what one waits for must not be more time for the others
		done.Go(func() { lost.Add(m.finish()) })
	}
	done.Wait()
	return lost.Load()
}

// hasLine reports whether a file has a line with that text.
func hasLine(path, text string) error {
	b, err := os.ReadFile(path)
	if err == nil && linesWith(string(b), text) == 0 {
		err = fmt.Errorf("%s: no line with %q", path, text)
	}
	return err
}
