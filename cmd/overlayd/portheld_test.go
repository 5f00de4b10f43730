package main

import (
	"fmt"
	"strings"
	"testing"
)

// TestPortHeld: no user gets the UDP port while a change of the network config has a session begin that has the same port.
func TestPortHeld(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2, testNetwork)
			a, b := c.upPair([2]string{mode, modeKernel})
			h := c.hosts[0]
			user := h.startUser("grab 192.0.2.2:8472", "grabbing")
			for i, more := range []string{`,"VNI":2`, `,"VNI":3,"MTU":1300`, `,"VNI":3,"DirectRouting":true`, ``} {
				c.put(storePrefix+"config", strings.Replace(testNetwork, `"vxlan"`, `"vxlan"`+more, 1))
				for _, h := range c.hosts {
					eventually(t, patience, "another session", func() error {
						if n := linesWith(h.daemon.text(), "msg=ready"); n < i+2 {
							return fmt.Errorf("%d sessions", n)
						}
						return nil
					})
				}
				warmUp(t, a, b)
			}
			if strings.Contains(user.text(), "got") {
				t.Error("a user has the port")
			}
			if left := h.Run("ip", "-br", "link", "show", "type", "vxlan"); strings.Count(left, "flannel") > 1 {
				t.Errorf("devices: %s", left)
			}
		})
	}
}
