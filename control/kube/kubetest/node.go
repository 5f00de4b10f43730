//go:build kube

package kubetest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// NewNode returns a Node with podCIDRs, as a controller would have given them to it.
func NewNode(name string, annotations map[string]string, podCIDRs ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}
	if len(podCIDRs) > 0 {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = podCIDRs[0], podCIDRs
	}
	return n
}

// Create creates a Node.
func Create(tb testing.TB, c kubernetes.Interface, n *corev1.Node) *corev1.Node {
	tb.Helper()
	made, err := c.CoreV1().Nodes().Create(context.Background(), n, metav1.CreateOptions{})
	if err != nil {
		tb.Fatalf("create node %s: %v", n.Name, err)
	}
	return made
}

// Get returns a Node, nil if it does not exist.
func Get(tb testing.TB, c kubernetes.Interface, name string) *corev1.Node {
	tb.Helper()
	n, err := c.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		tb.Fatalf("get node %s: %v", name, err)
	}
	return n
}

// Delete deletes a Node; one that is gone is not an error.
func Delete(tb testing.TB, c kubernetes.Interface, name string) {
	tb.Helper()
	if err := c.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		tb.Fatalf("delete node %s: %v", name, err)
	}
}

// Annotate sets annotations of a Node as `kubectl annotate` does; one that ends in "-" is removed.
func Annotate(tb testing.TB, c kubernetes.Interface, name string, pairs ...string) {
	tb.Helper()
	var fields []string
	for _, p := range pairs {
		key, value, set := strings.Cut(p, "=")
		text := fmt.Sprintf("%q:%q", key, value)
		if !set {
			text = fmt.Sprintf("%q:null", strings.TrimSuffix(key, "-"))
		}
		fields = append(fields, text)
	}
	patch := `{"metadata":{"annotations":{` + strings.Join(fields, ",") + `}}}`
	if _, err := c.CoreV1().Nodes().Patch(context.Background(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		tb.Fatalf("annotate node %s: %v", name, err)
	}
}
