//go:build flannel && kube

package main

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestKubeFlanneldAndBack is TestFlanneldAndBack with leases that are annotations of Nodes. The Node, too, is as before.
func TestKubeFlanneldAndBack(t *testing.T) {
	alone(t)
	for _, c := range []struct {
		name, mode, config string
		under              []string
	}{
		{"iptables", modeKernel, testNetwork, []string{under4}},
		{"nftables", modeKernel, kubeNetwork, []string{under4}},
		{"dual", modeKernel, dualNetwork, []string{under4, under6}},
		{"userspace", modeUserspace, testNetwork, []string{under4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			k := newKubeClusterOn(t, c.under, 3, c.config)
			k.dualNodes(len(c.under))
			overlayd := func(h *host) { k.up(slices.Index(k.hosts, h), "--dataplane", c.mode, "--ip-masq") }
			h := &back{k.hosts[0], t, c.mode, overlayd, k.flanneld}
			k.flanneld(h.host)
			k.flanneld(k.hosts[1])
			k.up(2, "--dataplane", modeKernel, "--ip-masq")
			before := k.annotations(h.host)
			h.goAndReturn(k.hosts[1], k.hosts[2])
			k.forgetNode(h.host)
			if diff := cmp.Diff(before, k.annotations(h.host)); diff != "" {
				t.Errorf("the Node after the way back (-only ever flanneld +now):\n%s", diff)
			}
		})
	}
}

// annotations are those of a host's Node.
func (k *kubeCluster) annotations(h *host) map[string]string {
	k.t.Helper()
	n, err := k.client.CoreV1().Nodes().Get(k.t.Context(), h.name, metav1.GetOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	return n.Annotations
}

// forgetNode removes the annotation that docs/from-flannel.md tells to remove.
func (k *kubeCluster) forgetNode(h *host) {
	k.t.Helper()
	patch := `{"metadata":{"annotations":{"` + annotation + `overlayd-node":null}}}`
	if _, err := k.client.CoreV1().Nodes().Patch(k.t.Context(), h.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		k.t.Fatal(err)
	}
}
