package main

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestForgedBetweenNetworks: packets that strangers, peers and pods of one network forge do not get into another network of the same hosts. The
// networks have one port or two, and the same dataplane or not.
func TestForgedBetweenNetworks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		port          uint16 // of the second network
		first, second string // dataplanes
	}{
		{8472, modeKernel, modeKernel},
		{8473, modeKernel, modeKernel},
		{8473, modeUserspace, modeUserspace},
		{8473, modeKernel, modeUserspace},
		{8473, modeUserspace, modeKernel},
	} {
		t.Run(fmt.Sprintf("port %d, %s and %s", c.port, c.first, c.second), func(t *testing.T) {
			t.Parallel()
			forgeBetweenNetworks(t, c.port, c.first, c.second)
		})
	}
}

func forgeBetweenNetworks(t *testing.T, port uint16, firstMode, secondMode string) {
	c := newCluster(t, 2, testNetwork)
	c.put("/second/config", fmt.Sprintf(`{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan","VNI":2,"Port":%d}}`, port))
	a, b := c.upPair([2]string{firstMode, firstMode}, "--ip-masq")
	h, g := c.hosts[0], c.hosts[1]
	second := [2]*host{h.on(t.TempDir(), "second"), g.on(t.TempDir(), "second")}
	for _, s := range second {
		s.up("--dataplane", secondMode, "--etcd-prefix", "/second", "--ip-masq")
	}
	x, y := second[0].pod(1, 0), second[1].pod(1, 0)
	warmUp(t, x, y)
	for _, s := range c.hosts {
		s.believeSources()
		s.Run("sysctl", "-wq", "net.ipv4.conf.pod1.rp_filter=0")
	}
	arrived := openInbox(t, map[string]*netnstest.NS{"pod a": a.NS, "pod b": b.NS, "pod x": x.NS, "pod y": y.NS, "host 0": h.NS, "host 1": g.NS})
	type send = func(packet []byte)
	link, fromA, fromX, fromY, fromG := rawSocket(t, c.under), rawSocket(t, a.NS), rawSocket(t, x.NS), rawSocket(t, y.NS), rawSocket(t, g.NS)
	stranger := netip.MustParseAddr("192.0.2.1")
	gateway, gateway2 := h.gateway().Addr(), second[0].gateway().Addr()
	type inner = func(text string) []byte
	text := func(from, to netip.Addr) inner { return func(s string) []byte { return textPacket(from, to, s) } }
	// vxlan wraps a packet into a datagram of a network, to that port.
	vxlan := func(vni uint32, from, to netip.Addr, port uint16, in inner) inner {
		return func(s string) []byte { return vxlanPacket(from, netip.AddrPortFrom(to, port), vni, in(s)) }
	}
	one := func(from, to netip.Addr, in inner) inner { return vxlan(1, from, to, 8472, in) }
	two := func(from, to netip.Addr, in inner) inner { return vxlan(2, from, to, port, in) }
	type row struct {
		name string
		send send
		make inner
	}
	forged := []row{
		{"VTEP in 1, source of 2", link, one(g.addr, h.addr, text(y.addr, a.addr))},
		{"VTEP in 1, to a pod of 2", link, one(g.addr, h.addr, text(b.addr, x.addr))},
		{"VTEP in 2, source of 1", link, two(g.addr, h.addr, text(b.addr, x.addr))},
		{"VTEP in 2, to a pod of 1", link, two(g.addr, h.addr, text(y.addr, a.addr))},
		{"stranger, 2 on the port of 1", link, vxlan(2, stranger, h.addr, 8472, text(y.addr, x.addr))},
		{"stranger, 1 on the port of 2", link, vxlan(1, stranger, h.addr, port, text(b.addr, a.addr))},
		{"pod of 2, source of a peer's pod in 1", fromX, text(b.addr, a.addr)},
		{"pod of 2 to a VTEP in 1", fromX, one(x.addr, g.addr, text(a.addr, b.addr))},
		{"pod of 1 to a VTEP in 2", fromA, two(a.addr, g.addr, text(x.addr, y.addr))},
		{"pod of 2 by its overlay to the port of 1", fromY, one(y.addr, gateway2, text(b.addr, a.addr))},
		{"pod of 2 by its overlay to the port of 1, as a VTEP", fromY, one(g.addr, gateway2, text(b.addr, a.addr))},
		{"VTEP, 1 within 2", link, two(g.addr, h.addr, one(y.addr, gateway2, text(b.addr, a.addr)))},
		{"VTEP, 1 within 2, as a VTEP", link, two(g.addr, h.addr, one(g.addr, gateway2, text(b.addr, a.addr)))},
		{"VTEP, 2 within 1", link, one(g.addr, h.addr, two(b.addr, gateway, text(y.addr, x.addr)))},
		{"process, an address of 2 to the port of 1", fromG, one(netip.MustParseAddr("10.6.0.9"), h.addr, text(y.addr, a.addr))},
	}
	// What is good goes the same ways behind it.
	good := []row{
		{"within 1", fromA, text(a.addr, b.addr)},
		{"within 2", fromX, text(x.addr, y.addr)},
		{"within 2, back", fromY, text(y.addr, x.addr)},
		{"between pods of one host", fromX, text(x.addr, a.addr)},
		{"VTEP in 1", link, one(g.addr, h.addr, text(b.addr, a.addr))},
		{"VTEP in 2", link, two(g.addr, h.addr, text(y.addr, x.addr))},
	}
	for range 3 {
		for _, r := range append(forged, good...) {
			r.send(r.make(r.name))
		}
	}
	for _, r := range good {
		eventually(t, patience, r.name, func() error {
			if !arrived.has(r.name) {
				return fmt.Errorf("it has not arrived")
			}
			return nil
		})
	}
	got := arrived.take()
	for _, r := range forged {
		if place, ok := got[r.name]; ok {
			t.Errorf("%s: arrived at %s", r.name, place)
		}
	}
}
