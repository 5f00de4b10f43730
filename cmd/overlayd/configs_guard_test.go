package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// forgedWorld is three hosts, the first of which has this dataplane and a pod that forges. Nothing but the guard judges what the pod and the link send. What pods send to VTEPs is
// masqueraded.
type forgedWorld struct {
	*cluster
	h              *host
	a, b, d, evil  *pod
	link, fromEvil func(packet []byte)
	arrived        *inbox
}

func newForgedWorld(t *testing.T, mode string) forgedWorld {
	c := newCluster(t, 3, testNetwork)
	for i, m := range []string{mode, modeKernel, modeKernel} {
		c.hosts[i].up("--dataplane", m)
	}
	h := c.hosts[0]
	w := forgedWorld{cluster: c, h: h, a: h.pod(0, 0), b: c.hosts[1].pod(0, 0), d: c.hosts[2].pod(0, 0), evil: h.pod(1, 0)}
	warmUp(t, w.a, w.b)
	warmUp(t, w.a, w.d)
	for _, x := range c.hosts {
		x.believeSources()
	}
	h.Run("sysctl", "-wq", "net.ipv4.conf.pod1.rp_filter=0")
	h.Run("nft", "add table ip masq; add chain ip masq post { type nat hook postrouting priority 100; }; add rule ip masq post oifname eth0 masquerade")
	c.under.Run("ip", "route", "replace", h.gateway().Masked().String(), "via", h.addr.String())
	w.evil.Run("ip", "route", "add", w.a.addr.String(), "via", h.gateway().Addr().String()) // else the forger waits for a neighbour, and blocks
	w.arrived = openInbox(t, map[string]*netnstest.NS{"pod a": w.a.NS, "pod b": w.b.NS, "pod d": w.d.NS, "host 0": h.NS, "host 1": c.hosts[1].NS, "host 2": c.hosts[2].NS})
	w.link, w.fromEvil = rawSocket(t, c.under), rawSocket(t, w.evil.NS)
	return w
}

// vxlan returns forgeries of one VNI and port, in the name of VTEPs with the MACs of that VNI. The last ones are for VTEPs.
func (w forgedWorld) vxlan(vni uint32, port uint16) (here, there []forgery) {
	h, h1, h2 := w.h, w.hosts[1], w.hosts[2]
	of := func(from, vtep, src, dst netip.Addr) func(string) []byte {
		return func(kind string) []byte {
			frame := append(vxlanFrame(dataplane.MAC(from, vni), dataplane.MAC(vtep, vni), vni), textPacket(src, dst, kind)...)
			return datagramPacket(from, netip.AddrPortFrom(vtep, port), frame)
		}
	}
	name := func(s string) string { return fmt.Sprintf("%s, VNI %d, port %d", s, vni, port) }
	here = []forgery{
		{name("VXLAN of a stranger"), w.link, of(netip.MustParseAddr("192.0.2.1"), h.addr, w.b.addr, w.a.addr), true},
		{name("VXLAN of a VTEP, source of another one's pod"), w.link, of(h1.addr, h.addr, w.d.addr, w.a.addr), true},
		{name("VXLAN of a VTEP, to the underlay"), w.link, of(h1.addr, h.addr, w.b.addr, h.addr), true},
		{name("pod, VXLAN of a VTEP to its host"), w.fromEvil, of(h1.addr, h.addr, w.b.addr, w.a.addr), false},
	}
	there = []forgery{
		{name("pod, VXLAN to a VTEP"), w.fromEvil, of(w.evil.addr, h1.addr, w.a.addr, w.b.addr), false},
		{name("pod, VXLAN of a VTEP to another"), w.fromEvil, of(h2.addr, h1.addr, w.d.addr, w.b.addr), false},
	}
	return here, there
}

// vxlanConfig is testNetwork with more of its backend.
func vxlanConfig(more string) string {
	return `{"Network":"10.5.0.0/16","SubnetMax":"10.5.63.0","Backend":{"Type":"vxlan"` + more + `}}`
}

// TestForgedWhileConfigChanges: no packet of a flood of forged ones arrives while the network config changes, or after a restart with another one. While a change of
// direct routes settles, packets of the link may come plainly, but none that a pod forges. When the port changes, a peer may have the new one before this host knows of it: then what is
// sent there is not judged.
func TestForgedWhileConfigChanges(t *testing.T) {
	alone(t)
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			w := newForgedWorld(t, mode)
			h := w.h
			all := forgeries(w.cluster, w.link, w.fromEvil, w.evil, w.a, w.b, w.d)
			for _, vni := range []uint32{1, 2} {
				for _, port := range []uint16{8472, 8473} {
					here, there := w.vxlan(vni, port)
					if all = append(all, here...); port == 8472 {
						all = append(all, there...)
					}
				}
			}
			good, err := startMeter(w.b.NS, w.a.NS, w.a.addr, time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			defer good.finish()
			waitTraffic(t, good, 200)
			keepForging(t, all)
			stallLinks(t)
			w.arrived.take()
			for _, step := range []struct {
				name, config string
				stopped      bool // the daemon of this host does not run meanwhile
				settles      bool
				moves        bool // the step changes port or VNI: until a peer has followed, this host does not know it as a peer
			}{
				{name: "VNI 2", config: `,"VNI":2`, moves: true},
				{name: "VNI 1, port 8473", config: `,"Port":8473`, moves: true},
				{name: "VNI 2, port 8472, after a restart", config: `,"VNI":2`, stopped: true, moves: true},
				{name: "GBP", config: `,"VNI":2,"GBP":true`},
				{name: "back", moves: true},
				{name: "DirectRouting", config: `,"DirectRouting":true`, settles: true},
				{name: "back again", settles: true},
			} {
				if mode == modeUserspace && step.name == "GBP" {
					continue // it cannot carry that
				}
				ready := strings.Count(h.daemon.text(), "msg=ready")
				if step.stopped {
					h.daemon.stop(unix.SIGTERM)
				}
				w.put("/coreos.com/network/config", vxlanConfig(step.config))
				if step.stopped {
					h.up("--dataplane", mode)
				} else {
					eventually(t, patience, "ready again", func() error {
						if strings.Count(h.daemon.text(), "msg=ready") == ready {
							return errors.New("it is not")
						}
						return nil
					})
				}
				waitTraffic(t, good, 200)
				for kind, place := range w.arrived.take() {
					pod := strings.HasPrefix(kind, "pod")
					if step.settles && !pod || step.moves && pod && strings.Contains(kind, "VXLAN") && !strings.Contains(kind, "its host") {
						continue
					}
					t.Errorf("%s: %s arrived at %s", step.name, kind, place)
				}
			}
		})
	}
}

// TestForgedBesideSilentStore: the VNI or the port changes, and the store says nothing from the moment at which the session with the new config begins until it has a lease.
// Nothing that is forged with the old and the new VNI and port arrives.
func TestForgedBesideSilentStore(t *testing.T) {
	alone(t)
	for _, mode := range []string{modeKernel, modeUserspace} {
		for name, c := range map[string]struct {
			config string
			vni    uint32
			port   uint16
		}{"VNI": {`,"VNI":2`, 2, 8472}, "port": {`,"Port":8473`, 1, 8473}, "both": {`,"VNI":2,"Port":8473`, 2, 8473}} {
			t.Run(mode+", "+name, func(t *testing.T) {
				w := newForgedWorld(t, mode)
				all := forgeries(w.cluster, w.link, w.fromEvil, w.evil, w.a, w.b, w.d)
				here, _ := w.vxlan(c.vni, c.port)
				w.openSilently(vxlanConfig(c.config))
				w.arrived.take()
				for range 20 {
					for _, f := range append(all, here...) {
						f.send(f.make(f.kind))
					}
				}
				w.link(textPacket(netip.MustParseAddr("192.0.2.1"), w.a.addr, "honest"))
				eventually(t, patience, "an honest packet", func() error {
					if !w.arrived.has("honest") {
						return errors.New("it has not arrived")
					}
					return nil
				})
				for kind, place := range w.arrived.take() {
					if kind != "honest" {
						t.Errorf("%s arrived at %s", kind, place)
					}
				}
				w.signalStore(unix.SIGCONT)
				eventually(t, patience, "it is back", func() error { return echo(w.a.NS, w.b.addr, 100) })
			})
		}
	}
}

// openSilently changes the config, and stops the store when host 0 has opened a session for it, before that has a lease. If the store was faster, it
// tries again.
func (w forgedWorld) openSilently(config string) {
	t, lines := w.t, func(text string) int { return strings.Count(w.h.daemon.text(), text) }
	t.Helper()
	for range 5 {
		opened, leased := lines("msg=dataplane "), lines("msg=\"lease acquired\"")
		w.put("/coreos.com/network/config", config)
		for deadline := time.Now().Add(patience); lines("msg=dataplane ") == opened; time.Sleep(50 * time.Microsecond) {
			if time.Now().After(deadline) {
				t.Fatal("no other session")
			}
		}
		w.signalStore(unix.SIGSTOP)
		time.Sleep(100 * time.Millisecond) // what it has answered already
		if lines("msg=\"lease acquired\"") == leased {
			return
		}
		w.signalStore(unix.SIGCONT)
		w.put("/coreos.com/network/config", testNetwork)
		eventually(t, patience, "the first config again", func() error {
			if lines("msg=\"lease acquired\"") < leased+2 {
				return errors.New("no lease")
			}
			return nil
		})
	}
	t.Fatal("the store was never silent")
}

func (w forgedWorld) signalStore(s unix.Signal) {
	for _, pid := range append(w.etcd.children(), w.etcd.cmd.Process.Pid) {
		if err := unix.Kill(pid, s); err != nil {
			w.t.Fatal(err)
		}
	}
}
