package kernel

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// ours lists the routes and nexthop objects of our protocol, sorted, without ids.
func (h *host) ours() []string {
	h.tb.Helper()
	var out []string
	for _, what := range []string{"route", "nexthop"} {
		for line := range strings.Lines(h.Run("ip", what, "show", "proto", "211")) {
			out = append(out, what+" "+nexthopIDs.ReplaceAllString(strings.TrimSpace(line), ""))
		}
	}
	slices.Sort(out)
	return out
}

// oursOf is what ours lists for peers on a device.
func oursOf(device string, nexthops bool, peers ...dataplane.Peer) []string {
	var out []string
	for _, p := range peers {
		for _, s := range p.Subnets {
			out = append(out, fmt.Sprintf("route %s via %s dev %s onlink", s, s.Addr(), device))
			if nexthops {
				out = append(out, fmt.Sprintf("nexthop via %s dev %s scope link proto 211 onlink", s.Addr(), device))
			}
		}
	}
	slices.Sort(out)
	return out
}

// The network has another VNI now. The old device stays, as another daemon may
// use it, but not what leads through it into our network.
func TestVNIChange(t *testing.T) {
	for _, nexthops := range []bool{true, false} {
		h := newHosts(t, 1)[0]
		h.cfg.noNexthops = !nexthops
		h.open()
		h.sync(wanted(peerB, peerC, peerD))
		h.dp.Close()
		h.Run("ip", "route", "add", "10.5.0.0/16", "dev", "flannel.1", "proto", "211") // the userspace dataplane's
		h.Run("ip", "route", "add", "unreachable", "10.5.8.0/24", "proto", "211")
		h.Run("ip", "route", "add", "10.5.7.0/24", "dev", "flannel.1", "proto", "static")
		h.Run("ip", "route", "add", "10.6.0.0/24", "via", "10.6.0.0", "dev", "flannel.1", "onlink", "proto", "211") // another network's
		h.Run("ip", "nexthop", "add", "id", "7", "via", "10.6.0.0", "dev", "flannel.1", "onlink", "proto", "211")
		h.cfg.VNI = 2
		h.open()
		w := wanted(peerB, peerC)
		w.Networks = []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16")}
		for i := range w.Peers {
			w.Peers[i].VNI = 2
		}
		h.sync(w)
		want := append(oursOf("flannel.2", nexthops, peerB, peerC),
			"route 10.6.0.0/24 via 10.6.0.0 dev flannel.1 onlink", "nexthop via 10.6.0.0 dev flannel.1 scope link proto 211 onlink")
		slices.Sort(want)
		if diff := cmp.Diff(want, h.ours()); diff != "" {
			t.Errorf("nexthops %v: want (-), got (+):\n%s", nexthops, diff)
		}
		if out := h.Run("ip", "route", "show", "10.5.7.0/24"); !strings.Contains(out, "flannel.1") {
			t.Errorf("somebody else's route is %q", out)
		}
	}
}

// The overlay network is another one now: what an overlayd left in it on another
// device is found only then.
func TestNetworkChangeTakesOver(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	h.Run("ip", "route", "add", "10.6.2.0/24", "dev", "eth0", "proto", "211")
	h.Run("ip", "route", "add", "10.6.3.0/24", "dev", "eth0", "proto", "211")
	w := wanted(peerB)
	w.Networks = []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16")}
	h.sync(w)
	peer := newPeer("192.0.2.20", "0e:00:00:00:00:0b", "10.6.2.0/24")
	w = wanted(peer)
	w.Subnets = []netip.Prefix{netip.MustParsePrefix("10.6.1.0/24")}
	w.Networks = []netip.Prefix{netip.MustParsePrefix("10.6.0.0/16")}
	h.sync(w)
	if diff := cmp.Diff(oursOf("flannel.1", true, peer), h.ours()); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}

// A route with another metric is somebody else's: it stays, beside ours.
func TestForeignRouteWithAMetricStays(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	h.Run("ip", "route", "add", "10.5.2.0/24", "via", "192.0.2.1", "dev", "eth0", "proto", "bgp", "metric", "20")
	for range 2 {
		h.sync(wanted(peerB))
		h.expect(wanted(peerB))
		if out := h.Run("ip", "route", "get", "10.5.2.1"); !strings.Contains(out, "dev flannel.1 ") {
			t.Errorf("traffic goes %s", out)
		}
	}
	h.sync(wanted())
	if out := h.Run("ip", "route", "show", "10.5.2.0/24"); out != "10.5.2.0/24 via 192.0.2.1 dev eth0 proto bgp metric 20 " {
		t.Errorf("the route is %q", out)
	}
}

// Somebody makes our nexthop objects be other ones. Without the compatibility mode
// the kernel does not say so of the routes, nor their device.
func TestRunRepairsNexthops(t *testing.T) {
	w := wanted(peerB, peerC)
	for _, compat := range []string{"1", "0"} {
		for _, to := range []string{
			"via 10.5.2.0 dev eth0 onlink",
			"via 10.5.2.0 dev eth0 onlink proto 211",
			"via 192.0.2.1 dev eth0",
			"via 10.5.9.0 dev flannel.1 onlink proto 211",
			"via 10.5.2.0 dev flannel.1 onlink proto static",
			"blackhole proto 211",
		} {
			t.Run(compat+" "+to, func(t *testing.T) {
				t.Parallel()
				h := newHosts(t, 1)[0]
				h.Must(func() error { return rtnl.SetSysctl("net/ipv4/nexthop_compat_mode", compat) })
				h.open()
				h.sync(w)
				h.run()
				id, _ := h.idsOf(peerB)
				h.Run("ip", append([]string{"nexthop", "replace", "id", id}, strings.Fields(to)...)...)
				for deadline := time.Now().Add(netnstest.Within(2 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
					now, used := h.idsOf(peerB)
					if now != "" && now != id && used == now {
						break
					}
					if time.Now().After(deadline) {
						t.Fatalf("nexthop was %s, is %q; the route's is %q", id, now, used)
					}
				}
				h.sync(w)
				if got := slices.Compact(h.ours()); len(got) != 6 {
					t.Errorf("there are %q", got)
				}
			})
		}
	}
}

// idsOf returns the ids of the nexthop object that a peer's first route needs and
// of that which it goes through.
func (h *host) idsOf(p dataplane.Peer) (right, used string) {
	h.tb.Helper()
	after := func(line, word string) string {
		fields := strings.Fields(line)
		if i := slices.Index(fields, word); i >= 0 {
			return fields[i+1]
		}
		return ""
	}
	for line := range strings.Lines(h.Run("ip", "nexthop", "show", "dev", "flannel.1", "proto", "211")) {
		if after(line, "via") == p.Subnets[0].Addr().String() {
			right = after(line, "id")
		}
	}
	return right, after(h.Run("ip", "route", "show", p.Subnets[0].String()), "nhid")
}

// With a daemon's own changes under way all the time, one of somebody else's is
// still repaired soon.
func TestRunRepairsSoonUnderChurn(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	h.run()
	few, many := wanted(manyPeers(300)...), wanted(manyPeers(600)...)
	few.Peers = append([]dataplane.Peer{peerB}, few.Peers...)
	many.Peers = append([]dataplane.Peer{peerB}, many.Peers...)
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); {
		h.sync(many)
		h.sync(few)
	}
	h.Run("ip", "route", "del", "10.5.2.0/24")
	h.await(few, 2*time.Second)
}

func TestTrafficAfterAVNIChange(t *testing.T) {
	hosts := newHosts(t, 2)
	for _, vni := range []uint32{1, 2, 1} {
		for _, h := range hosts {
			h.cfg.VNI = vni
		}
		a, b := join(t, hosts)
		echo(t, a, b, 9000, 5*time.Second)
		a.dp.Close()
		b.dp.Close()
	}
}
