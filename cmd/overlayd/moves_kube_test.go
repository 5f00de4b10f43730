//go:build kube

package main

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/control/kube/kubetest"
	"github.com/overlayd/overlayd/dataplane"
)

// TestKubeMoves: a host moves, another one gets the address that it had, and then both exchange
// theirs while they are down.
func TestKubeMoves(t *testing.T) {
	k := newKubeCluster(t, 3, kubeNetwork)
	modes := [3]string{modeKernel, modeUserspace, modeKernel}
	var pods []*pod
	for i := range 3 {
		k.node(i, nil)
	}
	for i := range 2 {
		k.up(i, "--dataplane", modes[i])
		pods = append(pods, k.hosts[i].pod(0, 0))
	}
	meet(t, patience, pods...)
	check := func(began moment) {
		t.Helper()
		meetSoon(t, began, pods...)
		for _, h := range k.hosts {
			a := kubetest.Get(t, k.client, h.name).Annotations
			want := fmt.Sprintf(`{"VNI":1,"VtepMAC":%q}`, dataplane.MAC(h.addr, 1))
			if a[annotation+"public-ip"] != h.addr.String() || a[annotation+"backend-data"] != want {
				t.Errorf("%s at %s has annotations %v, want %s", h.name, h.addr, a, want)
			}
		}
	}

	was := k.hosts[0].addr
	k.hosts[0].leaves()
	k.hosts[0].arrives(netip.MustParseAddr("192.0.2.77"))
	k.hosts[2].leaves()
	k.hosts[2].arrives(was)
	began := now(t)
	k.up(2, "--dataplane", modes[2])
	pods = append(pods, k.hosts[2].pod(0, 0))
	check(began)

	for _, h := range k.hosts {
		h.daemon.stop(unix.SIGKILL)
	}
	k.rotate(3)
	for i := range 3 {
		began = now(t)
		k.start(i, "--dataplane", modes[i])
	}
	check(began)
}
