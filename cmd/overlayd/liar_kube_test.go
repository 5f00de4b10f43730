//go:build kube

package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control/kube/kubetest"
)

// TestKubeOlderNodeTakesMAC is TestOlderNodeTakesMAC with Nodes: an older one patches its own annotations.
func TestKubeOlderNodeTakesMAC(t *testing.T) {
	k := newKubeCluster(t, 2, kubeNetwork)
	const liar = "liar"
	data := func(mac string) string { return fmt.Sprintf(`%sbackend-data={"VNI":1,"VtepMAC":%q}`, annotation, mac) }
	kubetest.Create(t, k.client, kubetest.NewNode(liar, map[string]string{annotation + "kube-subnet-manager": "true",
		annotation + "backend-type": "vxlan", annotation + "public-ip": "192.0.2.240", annotation + "backend-data": `{"VNI":1,"VtepMAC":"0e:00:00:00:02:40"}`}, "10.5.240.0/24"))
	time.Sleep(time.Second) // the age of a Node is in seconds
	for i, mode := range []string{modeKernel, modeUserspace} {
		k.node(i, nil)
		k.up(i, "--dataplane", mode)
	}
	a, b := k.hosts[0].pod(0, 0), k.hosts[1].pod(0, 0)
	warmUp(t, a, b)
	there, back := startMeters(t, a, b)
	for range 2 {
		for _, victim := range k.hosts[:2] {
			kubetest.Annotate(t, k.client, liar, data(vtepMAC(kubetest.Get(t, k.client, victim.name).Annotations[annotation+"backend-data"])))
			time.Sleep(lieTime / 2) // the time that the lie stands
		}
	}
	if lost := there.finish() + back.finish(); lost > 0 {
		t.Errorf("%d datagrams lost", lost)
	}
	for i := range 2 {
		k.checkNode(i) // with its own MAC
	}
}
