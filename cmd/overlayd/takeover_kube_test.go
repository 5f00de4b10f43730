//go:build kube

package main

import (
	"fmt"
	"maps"
	"testing"

	"github.com/overlayd/overlayd/control/kube/kubetest"
)

// TestKubeTakeover is TestTakeover with leases that are annotations of Nodes.
func TestKubeTakeover(t *testing.T) {
	c := newKubeCluster(t, 2, testNetwork)
	filterIPT.use(c.cluster)
	k := newTakeover(t, c.cluster, filterIPT, testNetwork)
	annotations := func(f *flannelHost) map[string]string {
		return map[string]string{
			annotation + "kube-subnet-manager": "true",
			annotation + "backend-type":        "vxlan",
			annotation + "backend-data":        fmt.Sprintf(`{"VNI":1,"VtepMAC":%q}`, f.macs[0]),
			annotation + "public-ip":           f.addr.String(),
		}
	}
	c.node(0, annotations(k.flannelHost))
	c.node(1, annotations(k.peer))
	k.play(
		func() { c.up(0, "--dataplane", modeKernel, "--ip-masq") },
		func() {
			for _, f := range []*flannelHost{k.flannelHost, k.peer} {
				want := annotations(f)
				if f == k.flannelHost {
					want[annotation+"overlayd-node"] = `{"v":1}`
				}
				if got := kubetest.Get(t, c.client, f.name).Annotations; !maps.Equal(got, want) {
					t.Errorf("annotations of %s are %q, want %q", f.name, got, want)
				}
			}
		},
		func() {}) // it would find the annotations as it writes them
}
