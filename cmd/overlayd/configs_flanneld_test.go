//go:build flannel

package main

import "testing"

// TestFlanneldConfigs: what a real flanneld serves with vxlan, both dataplanes serve beside it, without a loss.
func TestFlanneldConfigs(t *testing.T) {
	var served []configCase
	for _, c := range configCases() {
		if c.flanneld && c.kernel == "" {
			served = append(served, c)
		}
	}
	for _, c := range served {
		t.Run(c.name, func(t *testing.T) {
			modes := []string{"flanneld", modeKernel, modeUserspace}
			if c.userspace != "" {
				modes = modes[:2]
			}
			cl := c.cluster(t, len(modes))
			var pods []*pod
			for i, h := range cl.hosts {
				if i == 0 {
					h.flanneld()
				} else {
					h.up("--dataplane", modes[i], "--ip-masq")
				}
				pods = append(pods, h.pod(0, 0))
			}
			for i := range modes[1:] {
				checkNoLoss(t, cl.hosts[0], pods[0], cl.hosts[i+1], pods[i+1])
			}
		})
	}
}
