//go:build kube

package kube_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/overlayd/overlayd/control/kube/kubetest"
)

const (
	scaleNodes  = 5000
	scaleMemory = 100 << 10 // KiB
	scaleTime   = 3 * time.Second
)

// TestScale: what 5000 Nodes of the size of real ones cost a process, whether the API server
// streams them or, as before 1.34, lists them.
func TestScale(t *testing.T) {
	h := newHarness(t)
	h.SetConfig(t, []byte(`{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan","VNI":7}}`))
	fill(t, scaleNodes)
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream=%v", stream), func(t *testing.T) {
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(exe)
			cmd.Env = append(os.Environ(), asProbe+"="+shared.Kubeconfig(t, "", "")+" "+h.netConf, "KUBE_FEATURE_WatchListClient="+strconv.FormatBool(stream))
			cmd.Stderr = t.Output()
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				cmd.Process.Kill()
				cmd.Wait()
			}()
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil {
				t.Fatalf("%q, %v", line, err)
			}
			t.Log(line)
			var leases, bad, peers, rejected, rss, peak int
			var ms int64
			fmt.Sscanf(line, "leases=%d bad=%d peers=%d rejected=%d ms=%d rss=%d peak=%d", &leases, &bad, &peers, &rejected, &ms, &rss, &peak)
			if leases != scaleNodes || bad != 0 || peers != scaleNodes-1 {
				t.Errorf("%d leases, %d bad, %d peers", leases, bad, peers)
			}
			if peak > scaleMemory || time.Duration(ms)*time.Millisecond > scaleTime {
				t.Errorf("%d KiB after %d ms, want at most %d KiB and %s", peak, ms, scaleMemory, scaleTime)
			}
		})
	}
}

// fill makes n Nodes of the size of real ones: 13 KiB, most of it the images.
func fill(t *testing.T, n int) {
	t.Helper()
	begin := time.Now()
	var group errgroup.Group
	group.SetLimit(16)
	for i := range n {
		group.Go(func() error {
			kubetest.Create(t, shared.client, realNode(i))
			return nil
		})
	}
	group.Wait()
	t.Logf("%d nodes made in %s", n, time.Since(begin))
}

func realNode(i int) *corev1.Node {
	node := kubetest.NewNode(fmt.Sprintf("node-%d", i), nil, fmt.Sprintf("10.%d.%d.0/24", i>>8, i&255))
	node.Annotations = map[string]string{
		prefix + "kube-subnet-manager": "true", prefix + "backend-type": "vxlan",
		prefix + "public-ip":           fmt.Sprintf("192.168.%d.%d", i>>8, i&255),
		prefix + "backend-data":        fmt.Sprintf(`{"VNI":7,"VtepMAC":"0e:2a:f1:00:%02x:%02x"}`, i>>8, i&255),
		"node.alpha.kubernetes.io/ttl": "0", "volumes.kubernetes.io/controller-managed-attach-detach": "true",
	}
	node.Labels = map[string]string{"kubernetes.io/hostname": node.Name, "topology.kubernetes.io/zone": "zone-a", "kubernetes.io/os": "linux"}
	for image := range 50 { // the kubelet's default
		name := fmt.Sprintf("registry.example.com/some/project/of/somebody/image-%d", image)
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{SizeBytes: 123456789, Names: []string{
			name + "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", name + ":v1.2.3"}})
	}
	return node
}
