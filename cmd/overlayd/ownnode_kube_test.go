//go:build kube

package main

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/overlayd/overlayd/control/kube/kubetest"
)

// TestKubeOverwriteIsNoAddress: a public-ip-overwrite that is no address is logged and shown while the daemon runs, which goes on with the
// address of before, and no longer once it is put right.
func TestKubeOverwriteIsNoAddress(t *testing.T) {
	k := newKubeCluster(t, 1, kubeNetwork)
	h := k.hosts[0]
	k.node(0, nil)
	k.up(0, "--dataplane", modeKernel)
	says := func(want bool) {
		t.Helper()
		eventually(t, patience, fmt.Sprintf("the status tells of it: %v", want), func() error {
			if _, out := overlayd(t, "status", "--subnet-file", h.subnetFile); strings.Contains(out, "192.0.2.300") != want {
				return fmt.Errorf("status %s", out)
			}
			return nil
		})
	}
	kubetest.Annotate(t, k.client, h.name, annotation+"public-ip-overwrite=192.0.2.300")
	h.daemon.waitLog(`public-ip-overwrite`, patience)
	says(true)
	if n := linesWith(h.daemon.text(), "192.0.2.300"); n > 2 {
		t.Errorf("%d lines of one annotation:\n%s", n, h.daemon.text())
	}
	if got := kubetest.Get(t, k.client, h.name).Annotations[annotation+"public-ip"]; got != h.addr.String() {
		t.Errorf("public-ip is %s", got)
	}
	kubetest.Annotate(t, k.client, h.name, annotation+"public-ip-overwrite=192.0.2.77")
	eventually(t, patience, "overwritten", func() error {
		if got := kubetest.Get(t, k.client, h.name).Annotations[annotation+"public-ip"]; got != "192.0.2.77" {
			return fmt.Errorf("public-ip is %s", got)
		}
		return nil
	})
	says(false)
}

// TestKubeConditionIsSetAgain: somebody sets the condition NetworkUnavailable to True after the daemon was ready, again and again: it is
// False soon after each time, and the log does not fill.
func TestKubeConditionIsSetAgain(t *testing.T) {
	k := newKubeCluster(t, 1, kubeNetwork)
	k.node(0, nil)
	k.up(0, "--dataplane", modeKernel)
	k.checkNode(0)
	for range 10 {
		body := `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"True","reason":"NoRouteCreated"}]}}`
		if _, err := k.client.CoreV1().Nodes().Patch(t.Context(), "host0", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
		k.checkNode(0)
	}
	if n := linesWith(k.hosts[0].daemon.text(), "something else has set the condition NetworkUnavailable"); n != 1 {
		t.Errorf("%d lines of one condition, want one:\n%s", n, k.hosts[0].daemon.text())
	}
	if log := k.hosts[0].daemon.text(); linesWith(log, "session ended")+linesWith(log, "lease lost") > 0 {
		t.Errorf("the session or its lease has ended:\n%s", log)
	}
}
