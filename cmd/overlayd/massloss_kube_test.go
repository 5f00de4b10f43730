//go:build kube

package main

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
)

// nodeKeys is where the API server has its Nodes in etcd.
const nodeKeys = "/registry/minions/"

// forgetNodes deletes all Nodes in one transaction, and makes some again as kubelets do, without annotations.
func (k *kubeCluster) forgetNodes(again ...int) {
	k.t.Helper()
	r, err := k.cluster.client.Delete(k.t.Context(), nodeKeys, clientv3.WithPrefix())
	if err != nil || int(r.Deleted) < len(again) {
		k.t.Fatalf("%d Nodes deleted, %v", r.Deleted, err)
	}
	for _, i := range again {
		k.node(i, nil)
	}
}

// TestKubeMassLoss is TestMassLoss with Nodes: all are gone at once and come again without annotations, under
// daemons that run, and while one is down. One host forwards on without its daemon, and does not come again.
func TestKubeMassLoss(t *testing.T) {
	watched := durationFrom(t, "OVERLAYD_LOSS", 2*time.Second)
	k := newKubeCluster(t, 3, kubeNetwork)
	for i, mode := range []string{modeKernel, modeUserspace, modeKernel} {
		k.node(i, nil)
		k.up(i, "--dataplane", mode)
	}
	a, b, orphan := k.hosts[0].pod(0, 0), k.hosts[1].pod(0, 0), k.hosts[2].pod(0, 0)
	warmUp(t, a, b)
	warmUp(t, a, orphan)
	warmUp(t, b, orphan)
	for _, h := range k.hosts[:2] {
		eventually(t, patience, h.name+" knows all leases after a restart", func() error {
			return hasLine(h.subnetFile+".leases", "10.5.3.0-24")
		})
	}
	k.hosts[2].daemon.stop(unix.SIGKILL)
	for _, restarted := range []string{"", modeKernel, modeUserspace} {
		all := append(startAll(t, a, b, orphan), startAll(t, b, orphan)...)
		switch restarted {
		case "":
			k.forgetNodes(0, 1)
		case modeKernel:
			k.hosts[0].daemon.stop(unix.SIGKILL)
			k.forgetNodes(0, 1)
			k.up(0, "--dataplane", modeKernel)
		case modeUserspace: // the crash costs packets
			all.finish()
			k.hosts[1].daemon.stop(unix.SIGKILL)
			k.forgetNodes(0, 1)
			k.up(1, "--dataplane", modeUserspace)
			all = append(startAll(t, a, b, orphan), startAll(t, b, orphan)...)
		}
		time.Sleep(watched) // the time of the promise
		if lost := all.finish(); lost > 0 {
			t.Errorf("with a restart of %q: %d datagrams lost", restarted, lost)
		}
	}
}
