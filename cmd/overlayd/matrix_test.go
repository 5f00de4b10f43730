package main

import (
	"fmt"
	"testing"
)

// TestMatrix is the main job: hosts of either dataplane reach each other's pods,
// from pods and from the host itself, with every byte checked.
func TestMatrix(t *testing.T) {
	for _, modes := range [][2]string{
		{modeKernel, modeKernel}, {modeKernel, modeUserspace}, {modeUserspace, modeKernel}, {modeUserspace, modeUserspace},
	} {
		t.Run(modes[0]+"-"+modes[1], func(t *testing.T) {
			c := newCluster(t, 2, testNetwork)
			for i, h := range c.hosts {
				h.up("--dataplane", modes[i])
			}
			for _, mtu := range []int{0, 1400} {
				index := mtu / 1400 // another pod for another MTU
				a, b := c.hosts[0].pod(index, mtu), c.hosts[1].pod(index, mtu)
				t.Run(fmt.Sprintf("mtu=%d", mtu), func(t *testing.T) { checkPair(t, c.hosts[0], a, c.hosts[1], b, transferSize) })
			}
		})
	}
}

const transferSize = 100 << 20

// checkPair runs every kind of traffic pod to pod and host to remote pod, both ways.
func checkPair(t *testing.T, hostA *host, a *pod, hostB *host, b *pod, bytes int64) {
	t.Helper()
	check := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, way := range []struct {
		name string
		host *host
		from *pod
		to   *pod
	}{{"a to b", hostA, a, b}, {"b to a", hostB, b, a}} {
		for _, size := range []int{56, 8000} {
			check(way.name+" pod to pod", echo(way.from.NS, way.to.addr, size))
			check(way.name+" host to pod", echo(way.host.NS, way.to.addr, size))
		}
		for _, size := range []int{1, 1000, 1400, 9000} {
			check(way.name+" pod to pod", datagrams(way.from.NS, way.to.NS, way.to.addr, size, 20))
			check(way.name+" host to pod", datagrams(way.host.NS, way.to.NS, way.to.addr, size, 20))
		}
		check(way.name+" pod to pod", sendTCP(way.from.NS, way.to.NS, way.to.addr, bytes))
		check(way.name+" host to pod", sendTCP(way.host.NS, way.to.NS, way.to.addr, bytes))
	}
}
