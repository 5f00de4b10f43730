//go:build flannel

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// TestFlanneldAndHostsOfOneFamily: a dual-stack cluster of two flannelds, an overlayd on an underlay of
// IPv4 only, one of IPv6 only, and one of both. Every pair that has a family in common has it; the
// two hosts name those that lack one.
func TestFlanneldAndHostsOfOneFamily(t *testing.T) {
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			c := newClusterOn(t, []string{under4, under6}, 5, dualNetwork)
			proxyTCP(t, c.under, "[2001:db8::1]:2379", "192.0.2.1:2379")
			only4, only6, both := c.hosts[2], c.hosts[3], c.hosts[4]
			only4.Run("ip", "-6", "addr", "flush", "dev", "eth0")
			only6.Run("ip", "-4", "addr", "flush", "dev", "eth0")
			for _, h := range c.hosts[:2] {
				h.flanneld()
				h.Must(func() error { return rtnl.SetSysctl(ip6Forward, "1") })
			}
			only4.up("--dataplane", mode)
			only6.up("--dataplane", mode, "--etcd-endpoints", "http://[2001:db8::1]:2379")
			both.up("--dataplane", mode)
			var pods []*pod
			for _, h := range c.hosts {
				pods = append(pods, h.pod(0, 0))
			}
			has := [2][5]bool{{true, true, true, false, true}, {true, true, false, true, true}} // IPv4, IPv6
			reached := func(i, j, family int) bool {
				overlayds := i >= 2 && j >= 2
				return has[family][i] && has[family][j] || overlayds && has[1-family][i] && has[1-family][j]
			}
			for i, a := range pods {
				for j, b := range pods {
					if i == j {
						continue
					}
					for family, addr := range b.addrs {
						if reached(i, j, family) {
							eventually(t, patience, fmt.Sprintf("pod %d reaches pod %d at %s", i, j, addr), func() error { return echoWithin(a.NS, addr, 1000, 200*time.Millisecond) })
						} else if echoWithin(a.NS, addr, 56, 300*time.Millisecond) == nil {
							t.Errorf("pod %d reaches pod %d at %s: how?", i, j, addr)
						}
					}
				}
			}
			for h, names := range map[*host]string{
				only4: `unreachable=2001:db8::5 no_ipv6_with="192.0.2.2 192.0.2.3"`,
				only6: `unreachable=192.0.2.4 no_ipv4_with="192.0.2.2 192.0.2.3"`,
			} {
				h.daemon.waitLog(names, patience)
				if text := h.daemon.text(); linesWith(text, names) != 1 || strings.Contains(text, "lease not used") {
					t.Errorf("want one line with %s:\n%s", names, text)
				}
			}
			if text := both.daemon.text(); strings.Contains(text, "no underlay family") {
				t.Errorf("a host with both families has something to say:\n%s", text)
			}
		})
	}
}
