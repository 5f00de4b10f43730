//go:build kube

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control/kube/kubetest"
)

// TestKubeConfigOfOtherPodCIDRs: a config that does not hold the Nodes' podCIDRs, as a helm upgrade without the values of the install
// writes it, is never applied, however short --config-hold is: pods reach each other, and Nodes that join are reached. A Node that is deleted
// and made again with podCIDRs inside the config's network applies it.
func TestKubeConfigOfOtherPodCIDRs(t *testing.T) {
	const (
		vni7  = `{"Network":"10.5.0.0/16","EnableNFTables":true,"Backend":{"Type":"vxlan","VNI":7}}`
		other = `{"Network":"10.244.0.0/16","EnableNFTables":true,"Backend":{"Type":"vxlan"}}`
	)
	const saysHeld = "network config is not applied: this host cannot carry it"
	for _, c := range []struct {
		name, mode string
		was, is    string
		says       string
		again      string // podCIDR of the Node when it is made again; "": it is not deleted
		gateway    string
	}{
		{"forgotten values, kernel", modeKernel, vni7, other, "doesn't contain", "10.244.1.0/24", "10.244.1.1/24"},
		{"forgotten values, userspace", modeUserspace, vni7, other, "doesn't contain", "10.244.1.0/24", "10.244.1.1/24"},
		{"a family more", modeKernel, kubeNetwork,
			`{"Network":"10.5.0.0/16","IPv6Network":"fd10:5::/48","EnableIPv6":true,"EnableNFTables":true,"Backend":{"Type":"vxlan"}}`, "pod cidr not assigned", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newKubeCluster(t, 3, c.was)
			for i := range 2 {
				k.node(i, nil)
				k.up(i, "--dataplane", c.mode, "--config-hold=100ms")
			}
			h, a, b := k.hosts[0], k.hosts[0].pod(0, 0), k.hosts[1].pod(0, 0)
			warmUp(t, a, b)
			k.writeConfig(c.is)
			for _, h := range k.hosts[:2] {
				h.daemon.waitLog(saysHeld, patience)
				h.daemon.waitLog(c.says, patience)
			}
			k.node(2, nil) // its daemon still has the config of before
			k.writeConfig(c.was)
			k.up(2, "--dataplane", c.mode, "--config-hold=100ms")
			k.writeConfig(c.is)
			k.hosts[2].daemon.waitLog(saysHeld, patience)
			for _, p := range []*pod{b, k.hosts[2].pod(0, 0)} {
				eventually(t, patience, "the pod is reached", func() error { return echoWithin(a.NS, p.addr, 56, 100*time.Millisecond) })
			}
			if n := linesWith(h.daemon.text(), "session ended"); n > 0 {
				t.Errorf("%d sessions have ended:\n%s", n, h.daemon.text())
			}
			if _, out := overlayd(t, "status", "--subnet-file", h.subnetFile); !strings.Contains(out, c.says) {
				t.Errorf("status: %s", out)
			}
			if c.again == "" {
				return
			}
			kubetest.Delete(t, k.client, h.name)
			kubetest.Create(t, k.client, kubetest.NewNode(h.name, nil, c.again))
			eventually(t, patience, "the other podCIDR", func() error {
				if got, err := readEnv(h.subnetFile); err != nil || got["FLANNEL_SUBNET"] != c.gateway {
					return fmt.Errorf("%v, %w", got, err)
				}
				return nil
			})
		})
	}
}

// writeConfig replaces the file of the network config.
func (k *kubeCluster) writeConfig(text string) {
	k.t.Helper()
	next := k.netConf + ".next"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		k.t.Fatal(err)
	}
	if err := os.Rename(next, k.netConf); err != nil {
		k.t.Fatal(err)
	}
}
