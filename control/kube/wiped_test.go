//go:build kube

package kube_test

import (
	"testing"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/kube/kubetest"
)

// TestServerWiped: the API server comes back with another, younger etcd.
func TestServerWiped(t *testing.T) {
	first, err := newAPIServer(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer first.close()
	for i := range 20 {
		kubetest.Create(t, first.client, peerNode(i))
	}
	h := newHarness(t)
	h.SetConfig(t, []byte(netConf))
	h.proxy.point(first.Addr.String())
	v := follow(t, h.store(t, "host"))
	if len(v.leases) != 20 {
		t.Errorf("%d leases", len(v.leases))
	}
	second, err := newAPIServer(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer second.close()
	kubetest.Create(t, second.client, peerNode(30))
	h.proxy.point(second.Addr.String())
	h.proxy.cut(false)
	v.until(t, 5*time.Second, "the only Node", func() bool { return len(v.leases) == 1 })
	kubetest.Create(t, second.client, peerNode(31))
	v.has(t, "10.3.131.0-24", func(control.Lease) bool { return v.resets == 2 })
}
