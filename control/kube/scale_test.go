//go:build kube

package kube_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	h.SetConfig(t, []byte(`{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan","VNI":1}}`))
	kubetest.Fill(t, shared.client, scaleNodes)
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream=%v", stream), func(t *testing.T) {
			cost(t, h, stream, scaleNodes, 0)
		})
	}
}

// TestLargeNodes: Nodes that somebody has filled with 250 KB of annotations each cost a process no more than real ones.
func TestLargeNodes(t *testing.T) {
	const real, large = 50, 500
	h := newHarness(t)
	h.SetConfig(t, []byte(`{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan","VNI":1}}`))
	kubetest.Fill(t, shared.client, real)
	text := strings.Repeat("x", 250_000)
	for i := range large {
		n := kubetest.NewNode(fmt.Sprintf("large-%d", i), map[string]string{prefix + "kube-subnet-manager": "true", prefix + "backend-type": "vxlan",
			prefix + "public-ip": "172.17.0.1", prefix + "backend-data": text}, fmt.Sprintf("10.%d.%d.0/24", 100+i>>8, i&255))
		if _, err := shared.client.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream=%v", stream), func(t *testing.T) { cost(t, h, stream, real, large) })
	}
}

// cost measures a process that reads good Nodes with a lease, and junk Nodes without one.
func cost(t *testing.T, h *harness, stream bool, good, junk int) {
	t.Helper()
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
	if leases != good || bad != junk || peers != good-1 {
		t.Errorf("%d leases, %d bad, %d peers", leases, bad, peers)
	}
	if raceEnabled {
		return // the detector's own memory is several times the process's
	}
	memory, limit := scaleMemory, scaleTime
	if junk > 0 {
		memory, limit = 150<<10, 10*limit
	}
	if peak > memory || time.Duration(ms)*time.Millisecond > limit {
		t.Errorf("%d KiB after %d ms, want at most %d KiB and %s", peak, ms, memory, limit)
	}
}
