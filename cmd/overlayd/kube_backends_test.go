//go:build kube

package main

import (
	"fmt"
	"maps"
	"os"
	"testing"

	"github.com/overlayd/overlayd/control/kube/kubetest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// TestKubeBackends: with the backends host-gw and alloc a Node says what flanneld writes, which is the other host's
// daemon if OVERLAYD_FLANNELD is set; with host-gw the pods reach each other.
func TestKubeBackends(t *testing.T) {
	flanneld := os.Getenv("OVERLAYD_FLANNELD")
	for backend, kind := range map[string]string{"host-gw": "host-gw", "alloc": ""} {
		t.Run(backend, func(t *testing.T) {
			k := newKubeCluster(t, 2, fmt.Sprintf(`{"Network":"10.5.0.0/16","EnableNFTables":true,"Backend":{"Type":%q}}`, backend))
			for i := range 2 {
				k.node(i, map[string]string{"dummy": "value"}) // a flanneld needs one
			}
			k.up(0)
			if h := k.hosts[1]; flanneld == "" {
				k.up(1)
			} else {
				k.startBinary(flanneld, 1, "-iface", "eth0").waitLog("Running backend", patience)
				h.Must(func() error { return rtnl.SetSysctl(ipForward, "1") })
			}
			for _, h := range k.hosts {
				got := kubetest.Get(t, k.client, h.name).Annotations
				want := map[string]string{"dummy": "value", annotation + "kube-subnet-manager": "true", annotation + "backend-type": kind,
					annotation + "backend-data": "null", annotation + "public-ip": h.addr.String()}
				delete(got, annotation+"overlayd-node")
				if got[annotation+"backend-type"] == "" { // flanneld writes the empty value
					got[annotation+"backend-type"] = ""
				}
				if !maps.Equal(got, want) {
					t.Errorf("%s: annotations %q, want %q", h.name, got, want)
				}
				if mtu := h.env("FLANNEL_MTU"); mtu != "1500" {
					t.Errorf("%s: FLANNEL_MTU=%s", h.name, mtu)
				}
			}
			if backend == "host-gw" {
				a, b := k.hosts[0].pod(0, 0), k.hosts[1].pod(0, 0)
				warmUp(t, a, b)
				checkPair(t, k.hosts[0], a, k.hosts[1], b, 1<<20)
			}
		})
	}
}
