package main

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// forgery is one kind of forged packet. The kind is the packet's text.
type forgery struct {
	kind string
	send func(packet []byte)
	make func(kind string) []byte
	wire bool // It is VXLAN from the link, which must not arrive during a cleanup either.
}

// forgeries are forged packets for a and for pods of the peers, from the link and from a pod of a's host.
func forgeries(c *cluster, link, pod func(packet []byte), evil, a, b, d *pod) []forgery {
	h, h1, h2 := c.hosts[0], c.hosts[1], c.hosts[2]
	stranger, outside := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("8.8.8.8")
	vxlan := func(outer, vtep, src, dst netip.Addr) func(kind string) []byte {
		return func(kind string) []byte {
			return vxlanPacket(outer, netip.AddrPortFrom(vtep, 8472), 1, textPacket(src, dst, kind))
		}
	}
	plain := func(src, dst netip.Addr) func(kind string) []byte {
		return func(kind string) []byte { return textPacket(src, dst, kind) }
	}
	return []forgery{
		{"VXLAN of a stranger", link, vxlan(stranger, h.addr, b.addr, a.addr), true},
		{"VXLAN of a VTEP, source of another one's pod", link, vxlan(h1.addr, h.addr, d.addr, a.addr), true},
		{"VXLAN of a VTEP, source outside", link, vxlan(h1.addr, h.addr, outside, a.addr), true},
		{"VXLAN of a VTEP, source of the target's pod", link, vxlan(h1.addr, h.addr, a.addr, h.gateway().Addr()), true},
		{"VXLAN of a VTEP, to the underlay", link, vxlan(h1.addr, h.addr, b.addr, h.addr), true},
		{"VXLAN of a VTEP, to a third host", link, vxlan(h1.addr, h.addr, b.addr, d.addr), true},
		{"plain, source of a peer's pod", link, plain(b.addr, a.addr), false},
		{"plain, source of a pod beside", link, plain(evil.addr, a.addr), false},
		{"pod, source of a peer's pod", pod, plain(b.addr, a.addr), false},
		{"pod, source of a peer's pod, to another peer", pod, plain(d.addr, b.addr), false},
		{"pod, VXLAN of a VTEP to its host", pod, vxlan(h1.addr, h.addr, b.addr, a.addr), false},
		{"pod, VXLAN to a VTEP", pod, vxlan(evil.addr, h1.addr, a.addr, b.addr), false},
		{"pod, VXLAN of a VTEP to another", pod, vxlan(h2.addr, h1.addr, d.addr, b.addr), false},
	}
}

// keepForging sends each kind every half a millisecond until the test ends.
func keepForging(t *testing.T, all []forgery) {
	quit, ended := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(quit); <-ended })
	go func() {
		defer close(ended)
		tick := time.NewTicker(500 * time.Microsecond)
		defer tick.Stop()
		for {
			for _, f := range all {
				f.send(f.make(f.kind))
			}
			select {
			case <-quit:
				return
			case <-tick.C:
			}
		}
	}()
}

// believeSources switches off the kernel's own check of sources, so that the guard alone judges.
func (h *host) believeSources() {
	h.c.t.Helper()
	for _, link := range []string{"all", "default", "eth0", "pod0"} {
		h.Run("sysctl", "-wq", "net.ipv4.conf."+link+".rp_filter=0")
	}
}

// TestForgedWhileItChanges: no packet of a flood of forged ones arrives while a host changes its dataplane and back. While `overlayd cleanup` removes
// everything, no forged VXLAN from the link arrives. Each change of a link takes long, so that a
// moment without the guard is not missed.
func TestForgedWhileItChanges(t *testing.T) {
	alone(t)
	for mode, other := range map[string]string{modeKernel: modeUserspace, modeUserspace: modeKernel} {
		t.Run(mode+" first", func(t *testing.T) {
			c := newCluster(t, 3, testNetwork)
			for i, m := range []string{mode, modeKernel, modeKernel} {
				c.hosts[i].up("--dataplane", m)
			}
			h := c.hosts[0]
			a, b, d, evil := h.pod(0, 0), c.hosts[1].pod(0, 0), c.hosts[2].pod(0, 0), h.pod(1, 0)
			warmUp(t, a, b)
			warmUp(t, a, d)
			for _, x := range c.hosts {
				x.believeSources()
			}
			h.Run("sysctl", "-wq", "net.ipv4.conf.pod1.rp_filter=0")
			// What a pod sends to a VTEP is masqueraded: it looks like this host's.
			h.Run("nft", "add table ip masq; add chain ip masq post { type nat hook postrouting priority 100; }; add rule ip masq post oifname eth0 masquerade")
			c.under.Run("ip", "route", "replace", h.gateway().Masked().String(), "via", h.addr.String())

			evil.Run("ip", "route", "add", a.addr.String(), "via", h.gateway().Addr().String()) // else the forger waits for a neighbour, and blocks
			arrived := openInbox(t, map[string]*netnstest.NS{"pod a": a.NS, "pod b": b.NS, "pod d": d.NS, "host 0": h.NS, "host 1": c.hosts[1].NS, "host 2": c.hosts[2].NS})
			all := forgeries(c, rawSocket(t, c.under), rawSocket(t, evil.NS), evil, a, b, d)
			good, err := startMeter(b.NS, a.NS, a.addr, time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			defer good.finish()
			beside, err := startMeter(c.under, h.NS, h.addr, time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			defer beside.finish()
			keepForging(t, all)
			guard := func(what string) { h.overlayd("guard", what, "--subnet-file", h.subnetFile).wait(patience) }
			guard("off")
			eventually(t, patience, "forged packets arrive without the guard", func() error {
				if !arrived.has("plain, source of a peer's pod") {
					return errors.New("none has arrived")
				}
				return nil
			})
			guard("on")
			waitTraffic(t, good, 200)
			arrived.take()
			stallLinks(t)

			start := func(signal unix.Signal, mode string) func() {
				return func() { h.daemon.stop(signal); h.up("--dataplane", mode) }
			}
			replace := func(mode string) func() { return func() { h.up("--dataplane", mode, "--replace") } }
			for _, change := range []struct {
				name string
				do   func()
			}{
				{"SIGTERM, the other dataplane", start(unix.SIGTERM, other)},
				{"SIGKILL, back", start(unix.SIGKILL, mode)},
				{"--replace, the other dataplane", replace(other)},
				{"--replace, back", replace(mode)},
			} {
				change.do()
				waitTraffic(t, good, 200)
				for kind, place := range arrived.take() {
					t.Errorf("%s: %s arrived at %s", change.name, kind, place)
				}
			}
			h.daemon.stop(unix.SIGTERM)
			if p := h.overlayd("cleanup", "--subnet-file", h.subnetFile); p.wait(patience) != 0 {
				t.Errorf("cleanup: %s", p.text())
			}
			waitTraffic(t, beside, 200)
			got := arrived.take()
			for _, f := range all {
				if place, ok := got[f.kind]; ok && f.wire {
					t.Errorf("cleanup: %s arrived at %s", f.kind, place)
				}
			}
		})
	}
}
