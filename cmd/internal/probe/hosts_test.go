package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/userspace"
)

const (
	testVNI  = 1
	testPort = 8472
	testMTU  = 1430 // over IPv6
)

// host is a node with both families, in overlay and underlay.
type host struct {
	*netnstest.NS
	t       *testing.T
	i       int
	under   []netip.Addr
	subnets []netip.Prefix
	vteps   []dataplane.VTEP
	plane   dataplane.Dataplane // nil: it is one that flanneld would have made
}

// newHosts makes hosts on a LAN, which is returned too, with these dataplanes: "kernel", "userspace" or "flannel". All know each other.
func newHosts(t *testing.T, modes ...string) (under *netnstest.NS, hosts []*host) {
	t.Helper()
	var all []*netnstest.NS
	for i := range modes {
		h := &host{NS: netnstest.New(t), t: t, i: i, under: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 2)}), netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", i+2))},
			subnets: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.42.%d.0/24", i+1)), netip.MustParsePrefix(fmt.Sprintf("fd42:0:0:%d::/64", i+1))}}
		hosts, all = append(hosts, h), append(all, h.NS)
	}
	under = netnstest.LAN(t, "192.0.2.0/24", all...)
	netnstest.Number(under, "2001:db8::/64", all...)
	for i, h := range hosts {
		h.forward("1")
		h.open(modes[i])
	}
	for _, h := range hosts {
		h.meet(hosts)
	}
	return under, hosts
}

// forward turns forwarding on or off.
func (h *host) forward(value string) {
	h.t.Helper()
	h.Must(func() error {
		return errors.Join(rtnl.SetSysctl("net/ipv4/ip_forward", value), rtnl.SetSysctl("net/ipv6/conf/all/forwarding", value))
	})
}

func (h *host) open(mode string) {
	h.t.Helper()
	log := slog.New(slog.NewTextHandler(h.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	h.Must(func() (err error) {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		var under []dataplane.Underlay
		for _, a := range h.under {
			under = append(under, dataplane.Underlay{Link: link.Attrs().Index, Local: a, Public: a})
		}
		switch mode {
		case "kernel":
			h.plane, err = kernel.Open(kernel.Config{Log: log, Underlays: under, VNI: testVNI, Port: testPort, MTU: testMTU})
		case "userspace":
			h.plane, err = userspace.Open(userspace.Config{Log: log, Underlays: under, VNI: testVNI, Port: testPort, MTU: testMTU, Offloads: userspace.AllOffloads})
		default:
			h.byHand()
		}
		return err
	})
	if h.plane == nil {
		return
	}
	h.vteps = h.plane.VTEPs()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := h.plane.Run(ctx, func() {}); err != nil {
			h.t.Errorf("host %d: %v", h.i, err)
		}
	})
	h.t.Cleanup(func() { cancel(); running.Wait(); h.plane.Close() })
}

// byHand makes the devices as flanneld does.
func (h *host) byHand() {
	for i, name := range []string{"flannel.1", "flannel-v6.1"} {
		v := dataplane.VTEP{Addr: h.under[i], MAC: dataplane.MAC(h.under[i], testVNI), VNI: testVNI}
		h.vteps = append(h.vteps, v)
		h.Run("ip", "link", "add", name, "address", v.MAC.String(), "mtu", fmt.Sprint(testMTU), "type", "vxlan", "id", "1",
			"local", v.Addr.String(), "dev", "eth0", "dstport", fmt.Sprint(testPort), "nolearning")
		h.Addr(name, netip.PrefixFrom(h.subnets[i].Addr(), h.subnets[i].Addr().BitLen()).String())
		h.Run("ip", "link", "set", name, "up")
	}
}

// meet tells h of all others.
func (h *host) meet(all []*host) {
	h.t.Helper()
	w := dataplane.Wanted{VTEPs: h.vteps, Subnets: h.subnets, Networks: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd42::/48")}, MTU: testMTU}
	for _, o := range all {
		for i, v := range o.vteps {
			switch {
			case o == h:
			case h.plane == nil:
				name := []string{"flannel.1", "flannel-v6.1"}[i]
				base, mac := o.subnets[i].Addr().String(), v.MAC.String()
				h.Run("ip", "neigh", "add", base, "lladdr", mac, "dev", name, "nud", "permanent")
				h.Run("bridge", "fdb", "add", mac, "dst", v.Addr.String(), "dev", name)
				h.Run("ip", "route", "add", o.subnets[i].String(), "via", base, "dev", name, "onlink")
			default:
				w.Peers = append(w.Peers, dataplane.Peer{VTEP: v, Subnets: o.subnets[i : i+1]})
			}
		}
	}
	if h.plane == nil {
		return
	}
	h.Must(func() error {
		w, err := h.plane.Sync(context.Background(), w)
		return errors.Join(err, h.plane.Prune(context.Background(), w))
	})
}

// watch runs a Prober on the host, which asks the others.
func (h *host) watch(others ...*host) *watcher {
	h.t.Helper()
	s := &controller.Status{Held: true, MTU: testMTU, Lease: control.Lease{Subnet: h.subnets[0], IPv6Subnet: h.subnets[1]}}
	for _, o := range others {
		for i := range o.subnets {
			s.Peers = append(s.Peers, controller.PeerStatus{Subnet: o.subnets[i], VTEP: o.under[i], State: controller.PeerUp})
		}
	}
	w := &watcher{t: h.t, hosts: others}
	w.Prober = New(Config{Log: slog.New(slog.NewTextHandler(&w.log, nil)), Interval: 200 * time.Millisecond, Limit: NewLimit(),
		Status: func() *controller.Status { return s }, Local: h.under, Tunnel: true, Port: testPort})
	w.open = h.openSocket
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	w.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	h.t.Cleanup(w.stop)
	return w
}

// openSocket opens a socket on the host.
func (h *host) openSocket(v6 bool) (t transport, err error) {
	err = h.Do(func() (err error) { t, err = openSocket(v6); return err })
	return t, err
}

// watcher is a Prober and its log.
type watcher struct {
	*Prober
	t     *testing.T
	hosts []*host
	log   netnstest.Log
	stop  func()
}

// await waits until all peers are in a state that ok accepts.
func (w *watcher) await(what string, ok func(p *status.Probe) bool) {
	w.t.Helper()
	began := time.Now()
	for {
		bad := ""
		s := w.Status()
		for i := range s.Peers {
			if !ok(&s.Peers[i]) {
				bad += fmt.Sprintf("\n%+v", s.Peers[i])
			}
		}
		if bad == "" && len(s.Peers) > 0 {
			w.t.Logf("%s after %s", what, time.Since(began).Round(time.Millisecond))
			return
		}
		if time.Since(began) > 15*time.Second {
			s.Peers = nil
			w.t.Fatalf("not %s: %s\n%+v\n%s", what, bad, s, w.log.String())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// is waits until all peers are in that state for that reason.
func (w *watcher) is(state status.ProbeState, reason string) {
	w.t.Helper()
	w.await(strings.TrimSpace(string(state)+" "+reason), func(p *status.Probe) bool { return p.State == state && p.Reason == reason })
}

// drop has a host drop what matches; the function that it returns ends that.
func (h *host) drop(hook string, matches ...string) (undo func()) {
	h.t.Helper()
	h.Run("nft", "add", "table", "inet", "test")
	h.Run("nft", "add", "chain", "inet", "test", hook, fmt.Sprintf("{ type filter hook %s priority 0; }", hook))
	for _, m := range matches {
		h.Run("nft", "add", "rule", "inet", "test", hook, m+" counter drop")
	}
	return func() { h.Run("nft", "delete", "table", "inet", "test") }
}
