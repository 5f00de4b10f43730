package kube

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxAnnotation is how much is read of an annotation, in bytes: more than any good one has.
const maxAnnotation = 1024

// trim returns a Node of what lease looks at: a twentieth of a real one.
func (r reader) trim(n *corev1.Node) *corev1.Node {
	t := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, ResourceVersion: n.ResourceVersion, CreationTimestamp: n.CreationTimestamp},
		Spec:       corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs},
	}
	if n.Annotations[r.names.managed] != "true" {
		return t
	}
	if r.isOwn != nil && r.isOwn(n.Name) {
		t.Status.Conditions = networkConditions(n)
	}
	keys := append(r.names.written(), r.names.overwrite, r.names.overwriteV6)
	t.Annotations = make(map[string]string, len(keys))
	for _, k := range keys {
		if v, ok := n.Annotations[k]; ok {
			t.Annotations[k] = strings.Clone(v[:min(len(v), maxAnnotation+1)]) // or the rest would stay in memory; a byte more tells that it was cut
		}
	}
	return t
}

// networkConditions returns the conditions NetworkUnavailable of a Node: one at most.
func networkConditions(n *corev1.Node) (all []corev1.NodeCondition) {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable {
			all = append(all, corev1.NodeCondition{Type: c.Type, Status: c.Status})
		}
	}
	return all
}
