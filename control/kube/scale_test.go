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
			if raceEnabled {
				return // the detector's own memory is several times the process's
			}
			if peak > scaleMemory || time.Duration(ms)*time.Millisecond > scaleTime {
				t.Errorf("%d KiB after %d ms, want at most %d KiB and %s", peak, ms, scaleMemory, scaleTime)
			}
		})
	}
}
