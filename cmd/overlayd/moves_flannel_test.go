//go:build flannel

package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

// TestFlanneldSeesMoves: hosts beside a flanneld, which goes on undisturbed, exchange their addresses, and
// a new host gets one that another has left.
func TestFlanneldSeesMoves(t *testing.T) {
	modes := [3]string{modeKernel, modeUserspace, modeKernel}
	c := newCluster(t, 4, testNetwork)
	flanneld := c.hosts[3]
	flanneld.flanneld()
	var pods []*pod
	for i := range 2 {
		c.hosts[i].up("--dataplane", modes[i])
		pods = append(pods, c.hosts[i].pod(0, 0))
	}
	pods = append(pods, flanneld.pod(0, 0))
	meet(t, patience, pods...)
	for _, h := range c.hosts[:2] {
		h.daemon.stop(unix.SIGKILL)
	}
	c.rotate(2)
	var began moment
	for i, h := range c.hosts[:2] {
		began = now(t)
		h.start("--dataplane", modes[i])
	}
	meetSoon(t, began, pods...)

	mover, next := c.hosts[0], c.hosts[2]
	was := mover.addr
	mover.leaves()
	mover.arrives(netip.MustParseAddr("192.0.2.77"))
	next.leaves()
	next.arrives(was)
	c.moved(mover, was)
	began = now(t)
	next.up("--dataplane", modes[2])
	pods = append(pods, next.pod(0, 0))
	meetSoon(t, began, pods...)
	c.checkMACs(c.hosts[:3]...)
}

// TestFlanneldKeepsMAC: a flanneld has the MAC that is an overlayd's by its address. It cannot change
// it, and so the overlayd does.
func TestFlanneldKeepsMAC(t *testing.T) {
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			c := newCluster(t, 2, testNetwork)
			ours, flanneld := c.hosts[0], c.hosts[1]
			mac := dataplane.MAC(ours.addr, 1)
			flanneld.Must(func() error {
				eth0, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				return netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "flannel.1", HardwareAddr: mac[:]},
					VxlanId: 1, VtepDevIndex: eth0.Attrs().Index, SrcAddr: flanneld.addr.AsSlice()})
			})
			flanneld.flanneld()
			if v := c.get(flanneld.key()); !strings.Contains(v, mac.String()) {
				t.Fatalf("flanneld publishes %s, want %s", v, mac)
			}
			began := now(t)
			ours.up("--dataplane", mode)
			a, b := ours.pod(0, 0), flanneld.pod(0, 0)
			meetSoon(t, began, a, b)
			if v := c.get(ours.key()); !strings.Contains(v, dataplane.NthMAC(ours.addr, 1, 1).String()) {
				t.Errorf("overlayd publishes %s", v)
			}
			if n := linesWith(ours.daemon.text(), "another host publishes the MAC of this node"); n != 1 {
				t.Errorf("that is logged %d times:\n%s", n, ours.daemon.text())
			}
			ours.daemon.stop(unix.SIGTERM)
			began = now(t)
			ours.up("--dataplane", mode) // with the MAC of its lease
			meet(t, patience, a, b)
			t.Logf("all pairs after %s", began.passed(t))
			if n := linesWith(ours.daemon.text(), "another host publishes the MAC of this node"); n != 0 {
				t.Errorf("the same again after a restart:\n%s", ours.daemon.text())
			}
		})
	}
}
