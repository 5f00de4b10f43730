//go:build kube

package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/control/kube/kubetest"
)

// TestKubeRivalNodes: Nodes that claim the podCIDR or the address of another one. One that cannot be used costs that one nothing and does not
// change its name. One that can be used, and is older, has the podCIDR: the node that does not get it says so first.
func TestKubeRivalNodes(t *testing.T) {
	k := newKubeCluster(t, 2, kubeNetwork)
	macs := byte(0)
	rival := func(name, public string, vni int, cidr string) {
		macs++
		kubetest.Create(t, k.client, kubetest.NewNode(name, map[string]string{annotation + "kube-subnet-manager": "true", annotation + "backend-type": "vxlan",
			annotation + "public-ip": public, annotation + "backend-data": fmt.Sprintf(`{"VNI":%d,"VtepMAC":"0e:00:00:00:02:%02x"}`, vni, macs)}, cidr))
	}
	says := func(h *host, what string, ok func(d *status.Daemon, n *status.Network) bool) {
		t.Helper()
		eventually(t, patience, what, func() error {
			_, out := overlayd(t, "status", "--subnet-file", h.subnetFile, "-o", "json")
			var d status.Daemon
			if err := json.Unmarshal([]byte(out), &d); err != nil || len(d.Networks) != 1 || !ok(&d, &d.Networks[0]) {
				return fmt.Errorf("%v in %s", err, out)
			}
			return nil
		})
	}
	isAt := func(subnet, name string) func(*status.Daemon, *status.Network) bool {
		return func(_ *status.Daemon, n *status.Network) bool {
			for _, p := range n.Peers {
				if p.State != controller.PeerRefused && p.Subnet == netip.MustParsePrefix(subnet) {
					return p.Name == name
				}
			}
			return false
		}
	}
	a, b := k.hosts[0], k.hosts[1]
	rival("useless", "192.0.2.240", 7, "10.5.2.0/24")
	time.Sleep(time.Second) // the age of a Node is in seconds
	for i, mode := range []string{modeKernel, modeUserspace} {
		k.node(i, nil)
		k.up(i, "--dataplane", mode)
	}
	warmUp(t, a.pod(0, 0), b.pod(0, 0))
	a.daemon.waitLog(`msg="lease not used" subnet=10.5.2.0/24 node=useless`, patience)
	a.daemon.waitLog("only if it is gone for good, kubectl delete node useless", patience)
	rival("dupip", b.addr.String(), 1, "10.5.61.0/24")
	says(a, "both have their own names", func(d *status.Daemon, n *status.Network) bool {
		return isAt("10.5.61.0/24", "dupip")(d, n) && isAt("10.5.2.0/24", b.name)(d, n)
	})
	kubetest.Delete(t, k.client, b.name)
	rival("thief", "192.0.2.241", 1, "10.5.2.0/24")
	says(a, "the older Node has the podCIDR", isAt("10.5.2.0/24", "thief"))
	time.Sleep(time.Second)
	k.node(1, nil)
	b.daemon.waitLog(`level=ERROR msg="an older lease has the subnet of this node: pods here cannot be reached" subnet=10.5.2.0/24 node=thief`, patience)
	says(b, "the verdict begins with it", func(d *status.Daemon, _ *status.Network) bool {
		return strings.Contains(d.Verdict.Why, "an older lease, of thief, has the subnet of this node") && strings.Contains(d.Warnings[0].Fix, "kubectl delete node thief")
	})
	kubetest.Delete(t, k.client, "thief")
	b.daemon.waitLog("no older lease has the subnet of this node any more", patience)
	says(a, "the Node has its podCIDR again", isAt("10.5.2.0/24", b.name))
}
