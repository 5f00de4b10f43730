package main

import (
	"strings"
	"testing"
)

// TestRenumbered: a host whose IPv6 address on the underlay is replaced by another one of the same link goes on sending to its peers, from the new one.
func TestRenumbered(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			cluster := newClusterOn(t, []string{under6}, 2, strings.Replace(dualNetwork, `"EnableIPv6"`, `"EnableIPv4":false,"EnableIPv6"`, 1))
			a, b := cluster.upPair([2]string{mode, modeKernel})
			h := cluster.hosts[0]
			there, back := startUnboundedMeters(t, a, b) // what comes before the peer knows the new address is lost
			waitTraffic(t, there, 100)
			h.Addr("eth0", "2001:db8::50/64")
			h.Run("ip", "addr", "del", "2001:db8::2/64", "dev", "eth0")
			h.waitSessions(2)
			waitTraffic(t, there, 200)
			waitTraffic(t, back, 200)
			there.finish()
			back.finish()
		})
	}
}
