package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/encap"
)

const (
	testVNI  = 1
	testPort = 8472
)

var (
	testNetwork  = netip.MustParsePrefix("10.42.0.0/16")
	testNetwork6 = netip.MustParsePrefix("fd42::/48")
)

// testHost is one node: a namespace on the underlay and a pod behind it.
type testHost struct {
	*netnstest.NS
	tb      testing.TB
	pod     *netnstest.NS
	addr    netip.Addr       // on the underlay 192.0.2.0/24
	under   []netip.Addr     // what there are VTEPs for: addr
	subnet  netip.Prefix     // 10.42.<n>.0/24; the pod has .2
	subnet6 netip.Prefix     // fd42:0:0:<n>::/64, or invalid (dual)
	vteps   []dataplane.VTEP // once there are

	vni      uint32 // testVNI unless changed
	offloads Offloads
	df       bool
	shared   *Port
}

func (h *testHost) podAddr() netip.Addr { return h.subnet.Addr().Next().Next() }

func (h *testHost) podAddr6() netip.Addr { return h.subnet6.Addr().Next().Next() }

// peers are what the others are told of h: each subnet by the VTEP of its family,
// if there is one.
func (h *testHost) peers() (ps []dataplane.Peer) {
	for i, v := range h.vteps {
		p := dataplane.Peer{VTEP: v}
		for _, s := range h.subnets() {
			if len(h.vteps) == 1 || s.Addr().Is4() == h.under[i].Is4() {
				p.Subnets = append(p.Subnets, s)
			}
		}
		ps = append(ps, p)
	}
	return ps
}

func (h *testHost) subnets() []netip.Prefix {
	if h.subnet6.IsValid() {
		return []netip.Prefix{h.subnet, h.subnet6}
	}
	return []netip.Prefix{h.subnet}
}

func (h *testHost) mtu() int {
	mtu := testMTU
	for _, a := range h.under {
		mtu = min(mtu, 1500-encap.Overhead(a))
	}
	return mtu
}

// newHosts makes n hosts, their pods' links with the given MTU.
func newHosts(tb testing.TB, n, podMTU int) []*testHost {
	tb.Helper()
	hosts := make([]*testHost, n)
	spaces := make([]*netnstest.NS, n)
	for i := range hosts {
		spaces[i] = netnstest.New(tb)
		hosts[i] = &testHost{NS: spaces[i], tb: tb, pod: netnstest.New(tb),
			addr:     netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 2)}),
			subnet:   netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 42, byte(i + 1), 0}), 24),
			vni:      testVNI,
			offloads: AllOffloads,
		}
		hosts[i].under = []netip.Addr{hosts[i].addr}
	}
	netnstest.LAN(tb, "192.0.2.0/24", spaces...)
	for _, h := range hosts {
		h.addPod(podMTU)
	}
	return hosts
}

// addPod links a pod to h.
func (h *testHost) addPod(mtu int) {
	h.tb.Helper()
	netnstest.Link(h.NS, "veth0", h.pod, "eth0")
	h.Addr("veth0", netip.PrefixFrom(h.subnet.Addr().Next(), 24).String())
	h.pod.Addr("eth0", netip.PrefixFrom(h.podAddr(), 24).String())
	h.pod.DefaultRoute(h.subnet.Addr().Next().String())
	h.Must(func() error { return errors.Join(rtnl.SetSysctl("net/ipv4/ip_forward", "1"), setMTU("veth0", mtu)) })
	h.pod.Must(func() error { return setMTU("eth0", mtu) })
}

// newRoutedHosts makes two hosts, with both families, with a router between them, whose
// link to the second has the given MTU. Their VTEPs are IPv4's.
func newRoutedHosts(tb testing.TB, mtu int) (a, b *testHost) {
	tb.Helper()
	router := netnstest.New(tb)
	var hosts [2]*testHost
	for i := range hosts {
		addr := netip.AddrFrom4([4]byte{192, 0, byte(i + 2), 2})
		h := &testHost{NS: netnstest.New(tb), tb: tb, pod: netnstest.New(tb), addr: addr, under: []netip.Addr{addr}, vni: testVNI, offloads: AllOffloads,
			subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 42, byte(i + 1), 0}), 24)}
		port := fmt.Sprintf("port%d", i)
		netnstest.Link(router, port, h.NS, "eth0")
		router.Addr(port, netip.PrefixFrom(addr.Prev(), 24).String())
		h.Addr("eth0", netip.PrefixFrom(addr, 24).String())
		h.DefaultRoute(addr.Prev().String())
		h.addPod(testMTU)
		hosts[i] = h
	}
	router.Must(func() error {
		return errors.Join(rtnl.SetSysctl("net/ipv4/ip_forward", "1"), rtnl.SetSysctl("net/ipv6/conf/all/forwarding", "1"), setMTU("port1", mtu))
	})
	hosts[1].Must(func() error { return setMTU("eth0", mtu) })
	for i, h := range hosts {
		gateway := netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 7: byte(i), 15: 1})
		h.addr6(router, fmt.Sprintf("port%d", i), netip.PrefixFrom(gateway, 64))
		h.addr6(h.NS, "eth0", netip.PrefixFrom(gateway.Next(), 64))
		h.DefaultRoute(gateway.String())
		h.dual(i)
	}
	return hosts[0], hosts[1]
}

func setMTU(link string, mtu int) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	return netlink.LinkSetMTU(l, mtu)
}

func (h *testHost) config() Config {
	c := Config{Log: slog.New(slog.NewTextHandler(h.tb.Output(), nil)),
		VNI: h.vni, Port: testPort, MTU: h.mtu(), Offloads: h.offloads, DF: h.df, Shared: h.shared}
	for _, a := range h.under {
		c.Underlays = append(c.Underlays, dataplane.Underlay{Local: a, Public: a})
	}
	return c
}

// open opens the userspace dataplane of h. It does not run yet.
func (h *testHost) open() *Dataplane {
	h.tb.Helper()
	var d *Dataplane
	h.Must(func() (err error) { d, err = Open(h.config()); return err })
	h.vteps = d.VTEPs()
	return d
}

// run runs d until the test ends or stop is called, which returns what Run did.
func (h *testHost) run(d *Dataplane) (stop func() error) {
	return h.runner(func(ctx context.Context) error { return d.Run(ctx, func() {}) })
}

func (h *testHost) runner(run func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = func() error {
		cancel()
		err := <-done
		done <- err
		return err
	}
	h.tb.Cleanup(func() {
		if err := stop(); err != nil {
			h.tb.Errorf("run: %v", err)
		}
	})
	return stop
}

// wanted is what h's dataplane is to make true with the given peers.
func (h *testHost) wanted(peers ...*testHost) dataplane.Wanted {
	w := dataplane.Wanted{Subnets: h.subnets(), Networks: []netip.Prefix{h.network(), testNetwork6}[:len(h.subnets())], MTU: h.mtu()}
	for _, p := range peers {
		w.Peers = append(w.Peers, p.peers()...)
	}
	return w
}

func (h *testHost) sync(d *Dataplane, peers ...*testHost) {
	h.tb.Helper()
	h.Must(func() error { _, err := d.Sync(context.Background(), h.wanted(peers...)); return err })
}

// eventually polls until ok, for what another goroutine or the kernel brings about.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("not within 10 s: %s", what)
		}
	}
}

// entryTo is the entry of a peer at that address.
func entryTo(a netip.AddrPort) *carrier.Entry { return &carrier.Entry{Peer: carrier.NewPeer(a)} }
