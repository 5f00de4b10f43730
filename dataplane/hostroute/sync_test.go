package hostroute

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/overlayd/overlayd/dataplane"
)

const (
	directB = "10.5.2.0/24 via 192.0.2.3 dev eth0"
	direct6 = "fd00:0:0:2::/64 via 2001:db8::3 dev eth0"
)

func directs(w dataplane.Wanted) (n int) {
	for _, p := range w.Peers {
		if p.Direct {
			n++
		}
	}
	return n
}

func TestSyncFollowsTheHostsRouting(t *testing.T) {
	hosts, _ := newHosts(t, 1)
	h := hosts[0].open()
	w := wanted(newPeer("192.0.2.3", "10.5.2.0/24"), newPeer("192.0.2.4", "10.5.4.0/24"),
		newPeer("198.51.100.9", "10.5.9.0/24"), newPeer("2001:db8::3", "fd00:0:0:2::/64"))
	for range 2 {
		if got := h.sync(w); directs(got) != 3 || len(got.Peers) != 4 {
			t.Errorf("got %v", got.Peers)
		}
		h.expect(0, directB, "10.5.4.0/24 via 192.0.2.4 dev eth0", direct6)
	}
	h.Run("ip", "route", "add", "192.0.2.4/32", "via", "192.0.2.1")
	h.Run("ip", "route", "add", "unreachable", "192.0.2.3/32")
	h.Run("ip", "route", "add", "10.5.0.0/16", "dev", "lo", "proto", "211") // as of the userspace dataplane
	if got := h.sync(w); directs(got) != 1 {
		t.Errorf("got %v", got.Peers)
	}
	h.expect(0, "10.5.0.0/16 dev lo scope link", direct6)
	h.Run("ip", "route", "del", "192.0.2.4/32")
	w.Peers = w.Peers[:2]
	if got := h.sync(w); directs(got) != 1 {
		t.Errorf("got %v", got.Peers)
	}
	h.expect(0, "10.5.0.0/16 dev lo scope link", "10.5.4.0/24 via 192.0.2.4 dev eth0")
	w.Peers[1] = newPeer("192.0.2.5", "10.5.4.0/24")
	h.sync(w)
	h.expect(0, "10.5.0.0/16 dev lo scope link", "10.5.4.0/24 via 192.0.2.5 dev eth0")
}

func TestSyncTouchesNothingForeign(t *testing.T) {
	hosts, _ := newHosts(t, 1)
	h := hosts[0]
	for _, r := range []string{
		"10.5.2.0/24 via 192.0.2.9 proto bgp", // a peer's subnet
		"10.5.3.0/25 via 192.0.2.9",           // not of flannel's length
		"10.5.4.0/24 via 192.0.2.1",           // by the router
		"10.5.5.0/24 via 192.0.2.9 metric 7",
		"10.5.6.0/24 via 192.0.2.9 table 77",
		"10.6.2.0/24 via 192.0.2.9 proto 211", // another overlay's
		"blackhole 10.5.7.0/24 proto static",
	} {
		h.Run("ip", append([]string{"route", "add"}, strings.Fields(r)...)...)
	}
	h.AwaitAddrs()
	before := h.Run("ip", "route", "show", "table", "all")
	h.cfg.Blackhole = true
	h.open()
	got := h.sync(wanted(newPeer("192.0.2.3", "10.5.2.0/24"), newPeer("192.0.2.4", "10.5.4.0/24")))
	if directs(got) != 0 {
		t.Errorf("got %v", got.Peers)
	}
	h.r.Close()
	h.cfg = Config{Log: h.cfg.Log}
	h.open().sync(wanted())
	if diff := cmp.Diff(before, h.Run("ip", "route", "show", "table", "all")); diff != "" {
		t.Error(diff)
	}
}

// flanneld left its routes. They are adopted, replaced or removed; if the dataplane
// is to reach a subnet, it finds a route that it may replace.
func TestTakeOverFromFlannel(t *testing.T) {
	for _, direct := range []bool{true, false} {
		hosts, _ := newHosts(t, 1)
		h := hosts[0]
		h.cfg.Direct, h.cfg.Blackhole = direct, direct
		for _, r := range []string{"10.5.2.0/24 via 192.0.2.3", "10.5.4.0/24 via 192.0.2.7", "10.5.8.0/24 via 192.0.2.8", "blackhole 10.5.1.0/24"} {
			h.Run("ip", append([]string{"route", "add"}, strings.Fields(r)...)...)
		}
		h.Run("ip", "route", "add", "blackhole", "fd00:0:0:1::/64")
		h.Run("ip", "route", "add", "fd00:0:0:2::/64", "via", "2001:db8::3")
		h.open()
		w := wanted(newPeer("192.0.2.3", "10.5.2.0/24"), newPeer("192.0.2.4", "10.5.4.0/24"), newPeer("2001:db8::3", "fd00:0:0:2::/64"))
		if _, err := h.r.Sync(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if direct {
			h.sync(w)
			h.expect(0, "blackhole 10.5.1.0/24 metric 1048576", directB, "10.5.4.0/24 via 192.0.2.4 dev eth0",
				"blackhole fd00:0:0:1::/64 dev lo metric 1048576", direct6)
		} else {
			h.expect(0, directB, "10.5.4.0/24 via 192.0.2.7 dev eth0", "10.5.8.0/24 via 192.0.2.8 dev eth0", direct6)
		}
		if !direct { // nobody replaced them
			if err := h.r.Prune(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			h.expect(0, "")
		}
		if out := h.Run("ip", "route", "show", "proto", "boot") + h.Run("ip", "-6", "route", "show", "proto", "boot"); strings.Contains(out, "10.5.") || strings.Contains(out, "fd00") {
			t.Errorf("direct %v: left\n%s", direct, out)
		}
	}
}

// A route of flannel's that cannot become ours, as its gateway is no longer on-link, is removed, and that is said once.
func TestLeftoverThatCannotBeTakenOver(t *testing.T) {
	for _, direct := range []bool{true, false} {
		hosts, _ := newHosts(t, 1)
		h := hosts[0]
		var log strings.Builder
		h.cfg.Log, h.cfg.Direct = slog.New(slog.NewTextHandler(&log, nil)), direct
		h.open()
		for range 3 {
			h.Run("ip", "addr", "add", "198.51.100.2/24", "dev", "eth0")
			h.Run("ip", "route", "add", "10.5.9.0/24", "via", "198.51.100.9", "dev", "eth0")
			h.Run("ip", "addr", "del", "198.51.100.2/24", "dev", "eth0")
			if out := h.Run("ip", "route", "show", "10.5.9.0/24"); out == "" {
				t.Fatal("the kernel has removed the leftover")
			}
			h.sync(wanted(newPeer("198.51.100.9", "10.5.9.0/24")))
			if out := h.Run("ip", "route", "show", "10.5.9.0/24"); out != "" {
				t.Errorf("direct %v: left %s", direct, out)
			}
		}
		if s := h.r.Status(); s.State != dataplane.StateOK {
			t.Errorf("direct %v: %+v", direct, s)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "removing them") {
			t.Errorf("direct %v: the log is %s", direct, log.String())
		}
	}
}

func TestBlackholeGivesWayToABridge(t *testing.T) {
	hosts, _ := newHosts(t, 1)
	h := hosts[0]
	h.cfg.Direct, h.cfg.Blackhole = false, true
	h.open().sync(wanted())
	v4, v6 := "blackhole 10.5.1.0/24 metric 1048576", "blackhole fd00:0:0:1::/64 dev lo metric 1048576"
	h.expect(0, v4, v6)
	for _, pod := range []string{"10.5.1.7", "fd00:0:0:1::7"} {
		if out, err := h.Output("ip", "route", "get", pod); err == nil {
			t.Errorf("%s goes %s", pod, out)
		}
	}
	h.Run("ip", "link", "add", "cni0", "type", "bridge")
	h.Run("ip", "link", "set", "cni0", "up")
	h.Run("ip", "addr", "add", "10.5.1.1/24", "dev", "cni0")
	h.Run("ip", "addr", "add", "fd00:0:0:1::1/64", "dev", "cni0", "nodad")
	for _, pod := range []string{"10.5.1.7", "fd00:0:0:1::7"} {
		if out := h.Run("ip", "route", "get", pod); !strings.Contains(out, "dev cni0") {
			t.Errorf("%s goes %s", pod, out)
		}
	}
	w := wanted()
	w.Subnets = w.Subnets[:1]
	h.sync(w)
	h.expect(0, v4)
	h.r.Close()
	h.cfg.Blackhole = false
	h.open().sync(w)
	h.expect(0, "")
}

func TestCleanup(t *testing.T) {
	hosts, _ := newHosts(t, 1)
	h := hosts[0]
	h.cfg.Blackhole = true
	h.openKernel()
	h.open().sync(wanted(newPeer("192.0.2.3", "10.5.2.0/24"), newPeer("2001:db8::3", "fd00:0:0:2::/64"), newPeer("198.51.100.9", "10.5.9.0/24")))
	h.r.Close()
	want := []string{"blackhole 10.5.1.0/24", "direct route 10.5.2.0/24 via 192.0.2.3", "blackhole fd00:0:0:1::/64", "direct route fd00:0:0:2::/64 via 2001:db8::3"}
	for _, want := range [][]string{want, nil} {
		var removed []string
		h.Must(func() (err error) { removed, err = Cleanup(func(netip.Prefix, bool) bool { return true }); return err })
		if diff := cmp.Diff(want, removed); diff != "" {
			t.Error(diff)
		}
	}
	h.expect(0, "10.5.9.0/24 via 10.5.9.0 dev flannel.1 onlink")
}

func TestSyncAfterClose(t *testing.T) {
	hosts, _ := newHosts(t, 1)
	h := hosts[0].open()
	h.r.Close()
	h.r.Close()
	if _, err := h.r.Sync(t.Context(), wanted()); !errors.Is(err, errClosed) {
		t.Errorf("got %v", err)
	}
	if err := h.r.Prune(t.Context(), wanted()); !errors.Is(err, errClosed) {
		t.Errorf("got %v", err)
	}
}

// What the kernel takes no direct route to is encapsulated, and that is said once.
func TestSyncOfRefused(t *testing.T) {
	hosts, _ := newHosts(t, 1)
	h := hosts[0]
	var log strings.Builder
	h.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	h.open()
	h.Run("ip", "rule", "add", "oif", "eth0", "to", "192.0.2.3", "prohibit", "prio", "5") // which does not show before there is an interface
	w := wanted(newPeer("192.0.2.3", "10.5.2.0/24", "10.5.3.0/24"), newPeer("192.0.2.4", "10.5.4.0/24"))
	for range 3 { // each reads the routes again, because Run does not run
		h.Run("ip", "route", "add", "10.5.9.0/24", "via", "192.0.2.9", "proto", "211") // Prune reads them too
		if got := h.sync(w); directs(got) != 1 {
			t.Errorf("got %v", got.Peers)
		}
		h.expect(0, "10.5.4.0/24 via 192.0.2.4 dev eth0")
		s := h.r.Status()
		if s.State != dataplane.StateDegraded || !strings.Contains(s.Err, "2 subnets") || s.Objects[0] != (dataplane.ObjectStatus{Kind: kindDirect, Wanted: 3, Have: 1}) {
			t.Errorf("got %+v", s)
		}
	}
	h.Run("ip", "rule", "del", "prio", "5")
	if got := h.sync(w); directs(got) != 2 {
		t.Errorf("got %v", got.Peers)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "subnets=2 first=10.5.2.0/24") {
		t.Errorf("the log is %s", log.String())
	}
	if len(h.r.reasons) != 0 || h.r.Status().State != dataplane.StateOK {
		t.Errorf("remembered as refused: %v, %+v", h.r.reasons, h.r.Status())
	}
}
