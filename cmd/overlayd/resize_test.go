package main

import (
	"fmt"
	"strings"
	"testing"
)

// TestNetworkGetsSmaller: and larger again, under leases that fit both; no packet is lost.
func TestNetworkGetsSmaller(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			config := func(bits int) string {
				return fmt.Sprintf(`{"Network":"10.5.0.0/%d","SubnetMin":"10.5.1.0","SubnetMax":"10.5.9.0","Backend":{"Type":"vxlan"}}`, bits)
			}
			c := newCluster(t, 2, config(16))
			a, b := c.upPair([2]string{mode, mode})
			there, back := startMeters(t, a, b)
			for _, bits := range []int{17, 18, 16} {
				c.put("/coreos.com/network/config", config(bits))
				for _, h := range c.hosts {
					eventually(t, patience, "the network's size", func() error {
						routes := h.Run("ip", "route", "show", "type", "unreachable")
						if got := h.env("FLANNEL_NETWORK"); got != fmt.Sprintf("10.5.0.0/%d", bits) || strings.Count(routes, "10.5.") != 1 || !strings.Contains(routes, got) {
							return fmt.Errorf("subnet file: %s, unreachable: %s", got, routes)
						}
						return nil
					})
				}
			}
			if lost := there.finish() + back.finish(); lost > 0 {
				t.Errorf("%d datagrams lost", lost)
			}
		})
	}
}
