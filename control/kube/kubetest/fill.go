//go:build kube

package kubetest

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"golang.org/x/sync/errgroup"
)

// Fill makes n Nodes of the size of real ones, 13 KiB most of which are images. Node i has
// 10.(i/256).(i%256).0/24 behind 172.16.(i/256).(i%256) with VNI 1, as flanneld leaves it.
func Fill(tb testing.TB, c kubernetes.Interface, n int) {
	tb.Helper()
	var group errgroup.Group
	group.SetLimit(16)
	for i := range n {
		group.Go(func() error {
			_, err := c.CoreV1().Nodes().Create(context.Background(), realNode(i), metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		tb.Fatal(err)
	}
}

func realNode(i int) *corev1.Node {
	const prefix = "flannel.alpha.coreos.com/"
	high, low := i>>8, i&255
	node := NewNode(fmt.Sprintf("node-%d", i), map[string]string{
		prefix + "kube-subnet-manager": "true", prefix + "backend-type": "vxlan",
		prefix + "public-ip":           fmt.Sprintf("172.16.%d.%d", high, low),
		prefix + "backend-data":        fmt.Sprintf(`{"VNI":1,"VtepMAC":"0e:2a:f1:00:%02x:%02x"}`, high, low),
		"node.alpha.kubernetes.io/ttl": "0", "volumes.kubernetes.io/controller-managed-attach-detach": "true",
	}, fmt.Sprintf("10.%d.%d.0/24", high, low))
	node.Labels = map[string]string{"kubernetes.io/hostname": node.Name, "topology.kubernetes.io/zone": "zone-a", "kubernetes.io/os": "linux"}
	for image := range 50 { // the kubelet's default
		name := fmt.Sprintf("registry.example.com/some/project/of/somebody/image-%d", image)
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{SizeBytes: 123456789, Names: []string{
			name + "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", name + ":v1.2.3"}})
	}
	return node
}
