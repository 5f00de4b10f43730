package userspace

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

const (
	testVNI  = 1
	testPort = 8472
)

var testNetwork = netip.MustParsePrefix("10.42.0.0/16")

// host is one node: a namespace on the underlay 192.0.2.0/24 and a pod behind it.
type host struct {
	*netnstest.NS
	tb     testing.TB
	pod    *netnstest.NS
	addr   netip.Addr   // on the underlay
	subnet netip.Prefix // 10.42.<n>.0/24; the pod has .2
	vtep   dataplane.VTEP

	offloads Offloads
	df       bool
}

func (h *host) podAddr() netip.Addr { return h.subnet.Addr().Next().Next() }

func (h *host) peer() dataplane.Peer {
	return dataplane.Peer{VTEP: h.vtep, Subnets: []netip.Prefix{h.subnet}}
}

// newHosts makes n hosts, their pods' links with the given MTU.
func newHosts(tb testing.TB, n, podMTU int) []*host {
	tb.Helper()
	hosts := make([]*host, n)
	spaces := make([]*netnstest.NS, n)
	for i := range hosts {
		spaces[i] = netnstest.New(tb)
		hosts[i] = &host{NS: spaces[i], tb: tb, pod: netnstest.New(tb),
			addr:     netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 2)}),
			subnet:   netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 42, byte(i + 1), 0}), 24),
			offloads: AllOffloads,
		}
	}
	netnstest.LAN(tb, "192.0.2.0/24", spaces...)
	for _, h := range hosts {
		h.addPod(podMTU)
	}
	return hosts
}

// addPod links a pod to h.
func (h *host) addPod(mtu int) {
	h.tb.Helper()
	netnstest.Link(h.NS, "veth0", h.pod, "eth0")
	h.Addr("veth0", netip.PrefixFrom(h.subnet.Addr().Next(), 24).String())
	h.pod.Addr("eth0", netip.PrefixFrom(h.podAddr(), 24).String())
	h.pod.DefaultRoute(h.subnet.Addr().Next().String())
	h.Must(func() error { return errors.Join(rtnl.SetSysctl("net/ipv4/ip_forward", "1"), setMTU("veth0", mtu)) })
	h.pod.Must(func() error { return setMTU("eth0", mtu) })
}

// newRoutedHosts makes two hosts with a router between them, whose link to the
// second has the given MTU.
func newRoutedHosts(tb testing.TB, mtu int) (a, b *host) {
	tb.Helper()
	router := netnstest.New(tb)
	var hosts [2]*host
	for i := range hosts {
		addr := netip.AddrFrom4([4]byte{192, 0, byte(i + 2), 2})
		h := &host{NS: netnstest.New(tb), tb: tb, pod: netnstest.New(tb), addr: addr, offloads: AllOffloads,
			subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 42, byte(i + 1), 0}), 24)}
		port := fmt.Sprintf("port%d", i)
		netnstest.Link(router, port, h.NS, "eth0")
		router.Addr(port, netip.PrefixFrom(addr.Prev(), 24).String())
		h.Addr("eth0", netip.PrefixFrom(addr, 24).String())
		h.DefaultRoute(addr.Prev().String())
		h.addPod(testMTU)
		hosts[i] = h
	}
	router.Must(func() error { return errors.Join(rtnl.SetSysctl("net/ipv4/ip_forward", "1"), setMTU("port1", mtu)) })
	hosts[1].Must(func() error { return setMTU("eth0", mtu) })
	return hosts[0], hosts[1]
}

func setMTU(link string, mtu int) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	return netlink.LinkSetMTU(l, mtu)
}

func (h *host) config() Config {
	return Config{Log: slog.New(slog.NewTextHandler(h.tb.Output(), nil)), Underlays: []dataplane.Underlay{{Local: h.addr, Public: h.addr}},
		VNI: testVNI, Port: testPort, MTU: testMTU, Offloads: h.offloads, DF: h.df}
}

// open opens the userspace dataplane of h. It does not run yet.
func (h *host) open() *Dataplane {
	h.tb.Helper()
	var d *Dataplane
	h.Must(func() (err error) { d, err = Open(h.config()); return err })
	h.vtep = d.VTEPs()[0]
	return d
}

// run runs d until the test ends or stop is called, which returns what Run did.
func (h *host) run(d *Dataplane) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
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
func (h *host) wanted(peers ...*host) dataplane.Wanted {
	w := dataplane.Wanted{Subnets: []netip.Prefix{h.subnet}, Networks: []netip.Prefix{testNetwork}, MTU: testMTU}
	for _, p := range peers {
		w.Peers = append(w.Peers, p.peer())
	}
	return w
}

func (h *host) sync(d *Dataplane, peers ...*host) {
	h.tb.Helper()
	h.Must(func() error { return d.Sync(context.Background(), h.wanted(peers...)) })
}

// vxlan makes h a kernel VTEP as flannel does, with or without outer UDP checksums.
func (h *host) vxlan(udpcsum bool) {
	h.tb.Helper()
	h.vtep = dataplane.VTEP{Addr: h.addr, MAC: dataplane.MAC(h.addr, testVNI), VNI: testVNI}
	h.Must(func() error {
		under, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if err := addVXLAN(h, under.Attrs().Index, udpcsum); err != nil {
			return fmt.Errorf("add vxlan device: %w", err)
		}
		l, err := netlink.LinkByName("flannel.1")
		if err != nil {
			return err
		}
		base := netip.PrefixFrom(h.subnet.Addr(), 32)
		if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: rtnl.IPNet(base)}); err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	})
}

// addVXLAN is written out because the netlink library cannot say noudpcsum.
func addVXLAN(h *host, under int, udpcsum bool) error {
	flag := map[bool]byte{true: 1}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("vxlan"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	data.AddRtAttr(nl.IFLA_VXLAN_ID, nl.Uint32Attr(testVNI))
	data.AddRtAttr(nl.IFLA_VXLAN_LINK, nl.Uint32Attr(uint32(under)))
	data.AddRtAttr(nl.IFLA_VXLAN_LOCAL, h.addr.AsSlice())
	data.AddRtAttr(nl.IFLA_VXLAN_PORT, binary.BigEndian.AppendUint16(nil, testPort))
	data.AddRtAttr(nl.IFLA_VXLAN_LEARNING, []byte{0})
	data.AddRtAttr(nl.IFLA_VXLAN_UDP_CSUM, []byte{flag[udpcsum]})
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated("flannel.1")))
	req.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(testMTU)))
	req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, h.vtep.MAC[:]))
	req.AddData(info)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// vxlanPeer gives h, a kernel VTEP, neighbour, FDB entry and route for a peer.
func (h *host) vxlanPeer(p *host) {
	h.tb.Helper()
	h.Must(func() error {
		l, err := netlink.LinkByName("flannel.1")
		if err != nil {
			return err
		}
		i, mac, base := l.Attrs().Index, net.HardwareAddr(p.vtep.MAC[:]), p.subnet.Addr().AsSlice()
		return errors.Join(
			netlink.NeighSet(&netlink.Neigh{LinkIndex: i, State: unix.NUD_PERMANENT, IP: base, HardwareAddr: mac}),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: i, State: unix.NUD_PERMANENT, Family: unix.AF_BRIDGE, Flags: unix.NTF_SELF,
				IP: p.addr.AsSlice(), HardwareAddr: mac}),
			netlink.RouteReplace(&netlink.Route{LinkIndex: i, Dst: rtnl.IPNet(p.subnet), Gw: base, Flags: unix.RTNH_F_ONLINK}),
		)
	})
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
