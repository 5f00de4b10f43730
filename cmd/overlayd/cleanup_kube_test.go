//go:build kube

package main

import (
	"os"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// TestKubeCleanupNodes: the cleanup runs where overlayd does not, and never on Windows, also if all Nodes have the label: its image is of Linux.
func TestKubeCleanupNodes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deploy/kubernetes/cleanup.yml")
	if err != nil {
		t.Fatal(err)
	}
	var cleanup appsv1.DaemonSet
	if err := yaml.UnmarshalStrict(text, &cleanup); err != nil {
		t.Fatal(err)
	}
	overlayd := renderedSet(t)
	for given, want := range map[string]struct{ cleanup, overlayd bool }{
		"kubernetes.io/os=linux":               {false, true},
		"kubernetes.io/os=linux overlayd=no":   {true, false},
		"kubernetes.io/os=windows":             {false, false},
		"kubernetes.io/os=windows overlayd=no": {false, false},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{}}}
		for _, label := range strings.Fields(given) {
			key, value, _ := strings.Cut(label, "=")
			n.Labels[key] = value
		}
		if c, o := selects(t, &cleanup, n), selects(t, &overlayd, n); c != want.cleanup || o != want.overlayd {
			t.Errorf("%s: cleanup %v, overlayd %v, want %v", given, c, o, want)
		}
	}
}
