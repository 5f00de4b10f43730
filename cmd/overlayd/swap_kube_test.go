//go:build flannel && kube

package main

import (
	"fmt"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/control/kube/kubetest"
)

// TestKubeSwapMatrix is TestFlanneldSwapMatrix with leases that are annotations of Nodes.
func TestKubeSwapMatrix(t *testing.T) {
	alone(t)
	for _, m := range []struct {
		name, config string
		under        []string
	}{
		{"v4", testNetwork, []string{under4}},
		{"dual", dualNetwork, []string{under4, under6}},
	} {
		t.Run("kube/"+m.name, func(t *testing.T) {
			t.Parallel()
			k := newKubeClusterOn(t, m.under, 3, m.config)
			k.dualNodes(len(m.under))
			s := &swaps{t: t, host: k.hosts[0]}
			s.begin(modeFlanneld, modeFlanneld, func(h *host, mode string) {
				if mode == modeFlanneld {
					k.flanneld(h)
				} else {
					k.up(slices.Index(k.hosts, h), "--dataplane", mode, "--ip-masq")
				}
			})
			for _, mode := range everySwap {
				s.to(mode)
			}
		})
	}
}

// dualNodes makes the Nodes of all hosts, with a podCIDR in each of that many families, for a flanneld.
func (k *kubeCluster) dualNodes(families int) {
	k.t.Helper()
	for i, h := range k.hosts {
		cidrs := []string{fmt.Sprintf("10.5.%d.0/24", i+1), fmt.Sprintf("fd00:5:0:%d::/64", i+1)}
		// Every Node of a real cluster has annotations, and flanneld panics without.
		kubetest.Create(k.t, k.client, kubetest.NewNode(h.name, map[string]string{"node.alpha.kubernetes.io/ttl": "0"}, cidrs[:families]...))
	}
}

// flanneld starts a real flanneld on the Node of the host and waits until it watches the Nodes.
func (k *kubeCluster) flanneld(h *host) {
	k.t.Helper()
	h.flanneldWith([]string{"NODE_NAME=" + h.name}, "-kube-subnet-mgr", "-kubeconfig-file", k.kubeconfig, "-net-config-path", k.netConf)
	h.daemon.waitLog("watching for new subnet leases", patience)
}
