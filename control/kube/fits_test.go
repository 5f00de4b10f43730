//go:build kube

package kube_test

import (
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control/kube/kubetest"
)

// TestFits: a config fits if the own Node's podCIDRs do. A Node that does not fit as a watch has seen it last is not asked for again.
func TestFits(t *testing.T) {
	h := newHarness(t)
	h.SetConfig(t, []byte(netConf))
	kubetest.Create(t, shared.client, kubetest.NewNode("host", nil, "10.3.5.0/24"))
	s := h.store(t, "host")
	fits := func(says map[string]string) {
		t.Helper()
		for config, says := range says {
			h.SetConfig(t, []byte(config))
			n, err := s.Network(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Fits(t.Context(), n); says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
				t.Errorf("%s: %v, want %q", config, err, says)
			}
		}
	}
	other := strings.Replace(netConf, "10.3.", "10.9.", 1)
	fits(map[string]string{netConf: "", other: `PodCIDR of the "host" node; no network config gives a Node other podCIDRs`, dualConf: "pod cidr not assigned"})
	h.SetConfig(t, []byte(netConf))
	acquire(t, s)
	v := follow(t, s)
	v.until(t, 10*time.Second, "the own lease", func() bool { return len(v.leases) == 1 })
	h.proxy.cut(true)
	fits(map[string]string{netConf: "get node", other: "doesn't contain", dualConf: "pod cidr not assigned"})
}
