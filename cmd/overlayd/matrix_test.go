package main

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestMatrix is the main job: hosts of either dataplane reach each other's pods,
// from pods and from the host itself, with every byte checked.
func TestMatrix(t *testing.T) {
	t.Parallel()
	for _, modes := range [][2]string{
		{modeKernel, modeKernel}, {modeKernel, modeUserspace}, {modeUserspace, modeKernel}, {modeUserspace, modeUserspace},
	} {
		t.Run(modes[0]+"-"+modes[1], func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2, testNetwork)
			a, b := c.upPair(modes)
			for i, mtu := range []int{0, 1400} {
				if mtu != 0 { // other pods
					a, b = c.hosts[0].pod(i, mtu), c.hosts[1].pod(i, mtu)
				}
				t.Run(fmt.Sprintf("mtu=%d", mtu), func(t *testing.T) { checkPair(t, c.hosts[0], a, c.hosts[1], b, transferSize(t)) })
			}
		})
	}
}

// transferSize is how much goes each way between two hosts. OVERLAYD_TRANSFER, as in make test-long, is more.
func transferSize(t *testing.T) int64 { return int64(numberFrom(t, "OVERLAYD_TRANSFER", 16<<20)) }

// dualNetwork is testNetwork with the other family.
const dualNetwork = `{"Network":"10.5.0.0/16","SubnetMax":"10.5.63.0","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}}`

// TestFamilyMatrix is the matrix for an overlay of either family, or both, over an
// underlay of either, or both; each pod reaches the other by every address it has.
func TestFamilyMatrix(t *testing.T) {
	t.Parallel()
	overlays := []struct{ name, config string }{
		{"v4", testNetwork},
		{"v6", `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48"}`},
		{"dual", dualNetwork},
	}
	unders := []struct {
		name     string
		prefixes []string
		mtu      map[string]string // by overlay
	}{
		{"v4", []string{under4}, map[string]string{"v4": "1450", "v6": "1450", "dual": "1450"}},
		{"v6", []string{under6}, map[string]string{"v4": "1430", "v6": "1430", "dual": "1430"}},
		{"dual", []string{under4, under6}, map[string]string{"v4": "1450", "v6": "1430", "dual": "1430"}},
	}
	for _, overlay := range overlays {
		for _, under := range unders {
			pairs := [][2]string{{modeKernel, modeUserspace}, {modeKernel, modeKernel}, {modeUserspace, modeUserspace}}
			if len(under.prefixes) > 1 {
				pairs = pairs[:1]
			}
			for _, modes := range pairs {
				t.Run(fmt.Sprintf("%s over %s/%s-%s", overlay.name, under.name, modes[0], modes[1]), func(t *testing.T) {
					t.Parallel()
					c := newClusterOn(t, under.prefixes, 2, overlay.config)
					a, b := c.upPair(modes)
					for _, h := range c.hosts {
						if got, want := h.env("FLANNEL_MTU"), under.mtu[overlay.name]; got != want {
							t.Errorf("MTU %s, want %s", got, want)
						}
					}
					checkPair(t, c.hosts[0], a, c.hosts[1], b, 2<<20)
				})
			}
		}
	}
}

// checkPair runs every kind of traffic pod to pod and host to remote pod, both ways, to every
// address of the pods.
func checkPair(t *testing.T, hostA *host, a *pod, hostB *host, b *pod, bytes int64) {
	t.Helper()
	if raceEnabled {
		bytes /= 10 // it looks for races, which more of the same does not find
	}
	for _, way := range []struct {
		name string
		host *host
		from *pod
		to   *pod
	}{{"a to b", hostA, a, b}, {"b to a", hostB, b, a}} {
		for _, addr := range way.to.addrs {
			checkWay(t, way.name+" pod to pod", way.from.NS, way.to.NS, addr, bytes)
			checkWay(t, way.name+" host to pod", way.host.NS, way.to.NS, addr, bytes)
		}
	}
}

func checkWay(t *testing.T, name string, from, to *netnstest.NS, addr netip.Addr, bytes int64) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, size := range []int{56, 8000} {
		check(echo(from, addr, size))
	}
	for _, size := range []int{1, 1000, 1400, 9000} {
		check(datagrams(from, to, addr, size, 20))
	}
	check(sendTCP(from, to, addr, bytes))
}
