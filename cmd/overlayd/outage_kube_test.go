//go:build kube

package main

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/control/kube/kubetest"
)

// TestKubeRestartWithoutServer: while the API server is away, or takes connections and says nothing, a daemon that is killed and started
// again forwards as before. When the server is back, the daemon takes the address that the Node has for it.
func TestKubeRestartWithoutServer(t *testing.T) {
	const soon = 3 * time.Second // a second is promised; the test machine may be busy
	for _, c := range []struct {
		name, mode string
		silent     bool
	}{{"kernel", modeKernel, false}, {"userspace", modeUserspace, false}, {"userspace, silent", modeUserspace, true}} {
		t.Run(c.name, func(t *testing.T) {
			k := newKubeCluster(t, 2, kubeNetwork)
			for i := range 2 {
				k.node(i, nil)
				k.up(i, "--dataplane", c.mode)
			}
			h, a, b := k.hosts[0], k.hosts[0].pod(0, 0), k.hosts[1].pod(0, 0)
			warmUp(t, a, b)
			eventually(t, patience, "the leases are in the file", func() error { return hasLine(h.subnetFile+".leases", "10.5.2.0-24") })
			h.Addr("eth0", "192.0.2.200/24")
			kubetest.Annotate(t, k.client, h.name, annotation+"node-public-ip=192.0.2.200")
			if c.silent {
				h.Run("nft", "add table inet silent; add chain inet silent in { type filter hook input priority 0; }; add rule inet silent in tcp sport 6443 drop")
			} else {
				k.process.stop(unix.SIGKILL)
			}
			h.daemon.stop(unix.SIGKILL)
			k.start(0, "--dataplane", c.mode)
			eventually(t, soon, "pods reach each other", func() error { return echoWithin(a.NS, b.addr, 56, 100*time.Millisecond) })
			if c.mode == modeUserspace {
				h.Run("ip", "link", "del", "flannel.1")
				eventually(t, soon, "pods reach each other by a new device", func() error { return echoWithin(a.NS, b.addr, 56, 100*time.Millisecond) })
			}
			if n := linesWith(h.daemon.text(), "msg=ready"); n > 0 {
				t.Error("ready without the API server")
			}
			if c.silent {
				h.Run("nft", "delete table inet silent")
			} else {
				k.startServer()
			}
			eventually(t, patience, "the Node's address", func() error {
				if got := kubetest.Get(t, k.client, h.name).Annotations[annotation+"public-ip"]; got != "192.0.2.200" {
					return fmt.Errorf("public-ip is %q", got)
				}
				return nil
			})
			h.daemon.waitLog("msg=ready", patience)
			warmUp(t, a, b)
		})
	}
}
