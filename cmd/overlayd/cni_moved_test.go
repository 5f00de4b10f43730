package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// subnet writes the subnet file of a host that has the nth subnet.
func (r *cniRuntime) subnet(n int, dual bool) {
	r.c.t.Helper()
	text := fmt.Sprintf("FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.%d.1/24\nFLANNEL_MTU=1400\nFLANNEL_IPMASQ=true\n", n)
	if dual {
		text += fmt.Sprintf("FLANNEL_IPV6_NETWORK=fd10:5::/48\nFLANNEL_IPV6_SUBNET=fd10:5:0:%d::1/64\n", n)
	}
	if err := os.WriteFile(r.subnetFile, []byte(text), 0o644); err != nil {
		r.c.t.Fatal(err)
	}
}

// TestCNISubnetMoved: on a host that gets another subnet, as a Node that is made again with another podCIDR, pods are made once the last of the
// old subnet has gone. Until then those keep their gateway. A bridge that the config names is left as it is, and what the config says wins.
func TestCNISubnetMoved(t *testing.T) {
	t.Parallel()
	netnstest.RequireRoot(t)
	for name, c := range map[string]struct {
		more        string
		dual        bool
		early, late bool // pods are made while the old one lives, and later
	}{
		"IPv4":         {`,"delegate":{"isDefaultGateway":true,"hairpinMode":true}`, false, false, true},
		"dual":         {`,"delegate":{"isDefaultGateway":true,"hairpinMode":true}`, true, false, true},
		"named":        {`,"delegate":{"bridge":"cni0"}`, false, false, false},
		"not to force": {`,"delegate":{"forceAddress":false}`, false, false, false},
		"to force":     {`,"delegate":{"forceAddress":true}`, false, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newHosts(t, []string{under4}, 1).hosts[0].cniRuntime()
			r.more = c.more
			r.Run("ip", "link", "set", "lo", "up")
			r.subnet(1, c.dual)
			old := r.pod("1.0.0", r.bin)
			r.subnet(7, c.dual)
			try := func(when string, want bool, gateway string) {
				t.Helper()
				ns := netnstest.New(t)
				_, err := r.tool("1.0.0", r.bin, "add", ns)
				if (err == nil) != want || err != nil && !strings.Contains(err.Error(), "already has an IP address different from") {
					t.Errorf("%s: %v", when, err)
				}
				if has := r.Run("ip", "-4", "-o", "addr", "show", "cni0"); strings.Count(has, "inet ") != 1 || !strings.Contains(has, gateway+"/24") {
					t.Errorf("%s: want %s, have\n%s", when, gateway, has)
				}
				if _, err := r.tool("1.0.0", r.bin, "del", ns); err != nil {
					t.Error(err)
				}
			}
			gateways := map[bool]string{false: "10.5.1.1", true: "10.5.7.1"}
			try("an old pod lives", c.early, gateways[c.early])
			r.must("1.0.0", "del", old.NS)
			try("no pod lives", c.late, gateways[c.late])
			r.checkLeft("in the end")
		})
	}
}
